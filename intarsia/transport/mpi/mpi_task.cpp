#include "intarsia/transport/mpi/mpi_task.h"

#include <algorithm>
#include <cstring>

namespace intarsia {
namespace {

constexpr size_t kHeadBlock = 64;

constexpr size_t kBlocksOfAnyHead = (kLongestHead + kHeadBlock - 1) / kHeadBlock;

size_t blocks_of(const MpiParcel& parcel) { return (parcel.head_bytes() + kHeadBlock - 1) / kHeadBlock; }

bool same_message(const MpiParcel& a, const MpiParcel& b) { return a.memory == b.memory && a.bytes == b.bytes; }

}  // namespace

void MpiMessages::add(MpiRequest request, int64_t member) {
  requests.push_back(request);
  members.push_back(member);
  open += request != 0;
}

bool MpiMessages::test(MpiPort& port) {
  if (!open) return false;
  try {
    if (!port.test(requests.data(), requests.size())) return false;
  } catch (const MpiError& error) {
    auto member = error.request < 0 ? -1 : members[error.request];
    if (error.truncated && member >= 0) throw UnexpectedMessage{member, std::nullopt};
    throw MpiFault{member, error.what()};
  }
  open = requests.size() - std::count(requests.begin(), requests.end(), MpiRequest{0});
  return true;
}

void MpiMessages::missing(std::vector<int64_t>& of) const {
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i]) of.push_back(members[i]);
  }
}

void MpiMessages::clear() {
  requests.clear();
  members.clear();
  open = 0;
}

// A count of zero is no message.
void MpiTask::send(int64_t member, const char* from, uint64_t bytes) {
  if (bytes) outgoing.push_back({member, const_cast<char*>(from), bytes});
}

void MpiTask::receive(int64_t member, char* to, uint64_t bytes) {
  if (bytes) incoming.push_back({member, to, bytes});
}

void MpiTask::write_heads() {
  header.describe(call);
  size_t blocks = incoming.size() * kBlocksOfAnyHead;
  for (size_t i = 0; i < outgoing.size(); ++i) {
    if (i == 0 || !same_message(outgoing[i], outgoing[i - 1])) blocks += blocks_of(outgoing[i]);
  }
  if (blocks_.size() < blocks) blocks_.resize(blocks);
  auto* next = blocks_.data();
  for (auto& parcel : incoming) {
    parcel.head = next->bytes;
    next += kBlocksOfAnyHead;
  }
  for (size_t i = 0; i < outgoing.size(); ++i) {
    auto& parcel = outgoing[i];
    if (i && same_message(parcel, outgoing[i - 1])) {
      parcel.head = outgoing[i - 1].head;
      continue;
    }
    parcel.head = next->bytes;
    next += blocks_of(parcel);
    header.bytes = parcel.bytes;
    std::memcpy(parcel.head, &header, sizeof header);
    if (parcel.few()) std::memcpy(behind(parcel.head), parcel.memory, parcel.bytes);
  }
  seen.assign(incoming.size(), false);
}

bool MpiTask::finished() {
  if (abandoned || !heads_checked() || leaving.open) return false;
  while (first_open < pieces.size() && pieces[first_open].finished()) ++first_open;
  return std::all_of(pieces.begin() + first_open, pieces.end(), [](auto& piece) { return piece.finished(); });
}

// Members that have to send bytes come first: one that waits for its data holds up others in turn.
std::vector<int64_t> MpiTask::missing() const {
  std::vector<int64_t> members;
  arriving.missing(members);
  for (auto& piece : pieces) piece.coming.missing(members);
  if (!members.empty()) return members;
  leaving.missing(members);
  for (auto& piece : pieces) piece.going.missing(members);
  return members;
}

void MpiTask::clear() {
  side.reset();
  outgoing.clear();
  incoming.clear();
  pieces.clear();
  tensors.clear();
  arriving.clear();
  leaving.clear();
  checked = first_open = 0;
}

}  // namespace intarsia
