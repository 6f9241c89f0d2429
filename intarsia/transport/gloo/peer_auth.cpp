#include "intarsia/transport/gloo/peer_auth.h"

#include <cstring>
#include <functional>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "intarsia/launch/secret.h"

namespace intarsia {
namespace {

constexpr int kNumberTag = 0x1A77 << 15, kProofTag = kNumberTag + 1;  // of no collective, see Messages::tag
constexpr int64_t kProofBytes = 32;

std::string bytes_in(const at::Tensor& t) {
  return {static_cast<const char*>(t.data_ptr()), static_cast<size_t>(t.numel())};
}

at::Tensor tensor_of(const std::string& bytes) {
  auto t = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(t.data_ptr(), bytes.data(), bytes.size());
  return t;
}

// The proof that `from` sends to `to`, which sent it `number`.
std::string proof_to(const std::string& secret, const std::string& name, int64_t from, int64_t to,
                     const std::string& number) {
  return hmac_sha256(secret, c10::str("member ", name, " ", from, " ", to, " ") + number);
}

// Every member sends `mine(j)` to member j; returns what each one sent.
std::vector<std::string> exchange_words(c10d::Backend& backend, const std::vector<int64_t>& ranks, int me, int tag,
                                        std::chrono::milliseconds timeout,
                                        const std::function<std::string(int)>& mine) {
  auto n = static_cast<int>(ranks.size());
  std::vector<std::vector<at::Tensor>> in(n), out(n);
  std::vector<std::pair<int, c10::intrusive_ptr<c10d::Work>>> works;
  for (int j = 0; j < n; ++j) {
    if (j == me) continue;
    in[j] = {at::empty({kProofBytes}, at::kByte)};
    out[j] = {tensor_of(mine(j))};
    works.emplace_back(j, backend.recv(in[j], j, tag));
    works.emplace_back(j, backend.send(out[j], j, tag));
  }
  for (auto& [j, work] : works) {
    bool came = false;
    try {
      came = work->wait(timeout);
    } catch (const std::exception&) {
    }
    TORCH_CHECK_WITH(DistBackendError, came, "[make_group] rank ", ranks[j],
                     " did not show that it knows the secret of the job "
                     "(INTARSIA_SECRET): it is gone, or a stranger is connected in its place.");
  }
  std::vector<std::string> words(n);
  for (int j = 0; j < n; ++j) {
    if (j != me) words[j] = bytes_in(in[j][0]);
  }
  return words;
}

}  // namespace

void check_members(c10d::Backend& backend, const std::string& secret, const std::string& name,
                   const std::vector<int64_t>& ranks, int64_t position, std::chrono::milliseconds timeout) {
  auto me = static_cast<int>(position);
  auto number = random_bytes(kProofBytes);
  auto numbers = exchange_words(backend, ranks, me, kNumberTag, timeout, [&](int) { return number; });
  auto proofs = exchange_words(backend, ranks, me, kProofTag, timeout,
                               [&](int j) { return proof_to(secret, name, ranks[me], ranks[j], numbers[j]); });
  for (int j = 0; j < static_cast<int>(ranks.size()); ++j) {
    bool proven = j == me || equal_in_constant_time(proofs[j], proof_to(secret, name, ranks[j], ranks[me], number));
    TORCH_CHECK_WITH(DistBackendError, proven, "[make_group] rank ", ranks[j],
                     " does not know the secret of the job (INTARSIA_SECRET): it "
                     "has another one, or a stranger is connected in its place.");
  }
}

}  // namespace intarsia
