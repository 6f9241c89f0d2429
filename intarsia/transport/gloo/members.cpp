#include "intarsia/transport/gloo/members.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace intarsia {
namespace {

constexpr int kNeverSent = 0x1A76 << 15;  // see Note [Direct exchange]

}  // namespace

Members::Members(c10::intrusive_ptr<c10d::Backend> given, std::vector<int> peers, std::shared_ptr<WatchedLine> line)
    : backend(std::move(given)),
      peers(std::move(peers)),
      line(std::move(line)),
      gloo(backend && backend->getBackendName() == "gloo"),
      hash(hash_of(this->line->ranks)) {}

bool Members::whole() const {
  if (!backend || backend->getSize() != size()) return false;
  for (int64_t i = 0; i < size(); ++i) {
    if (peers[i] != i) return false;
  }
  return true;
}

// Gloo refuses to receive from whom it has lost.
std::vector<int64_t> Members::unconnected(int64_t member) const {
  std::vector<int64_t> lost;
  for (int64_t j = 0; j < size(); ++j) {
    bool is_lost = j == member;
    try {
      std::vector<at::Tensor> nothing{at::empty({1}, at::kByte)};
      if (!is_lost && j != position() && gloo) backend->recv(nothing, peers[j], kNeverSent);
    } catch (const std::exception&) {
      is_lost = true;
    }
    if (is_lost) lost.push_back(line->ranks[j]);
  }
  std::sort(lost.begin(), lost.end());
  return lost;
}

// Gloo closes all connections of a group when a wait times out, so we wait for a message that nobody sends.
void Members::interrupt() const {
  line->interrupt();
  if (!gloo || size() == 1) return;
  std::vector<at::Tensor> nothing{at::empty({1}, at::kByte)};
  try {
    backend->recv(nothing, peers[position() == 0], kNeverSent)->wait(std::chrono::milliseconds(1));
  } catch (const std::exception&) {
  }
}

}  // namespace intarsia
