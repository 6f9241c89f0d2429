#include "intarsia/transport/shm/steps.h"

#include <algorithm>
#include <cstring>

#include "intarsia/comm/reduce_memory.h"
#include "intarsia/core/copy_past_caches.h"

namespace intarsia {
namespace {

// Bytes that are moved before the others are notified: they fit into the first cache, and both sides can work at once.
constexpr uint64_t kPiece = 16 << 10;

bool begin_writing(RingWriter& ring, const MessageHeader& header) {
  if (ring.room(kCacheLineBytes) < kCacheLineBytes) return false;
  ring.write(reinterpret_cast<const char*>(&header), sizeof header);
  return true;
}

// Whether the message is there; throws if it is another one.
bool has_begun(RingReader& ring, const MessageHeader& expected) {
  if (ring.available(kCacheLineBytes) < kCacheLineBytes) return false;
  MessageHeader found;
  std::memcpy(&found, ring.here(), sizeof found);
  if (!(found == expected)) throw UnexpectedMessage{ring.writer(), found};
  return true;
}

bool begin_reading(RingReader& ring, const MessageHeader& expected) {
  if (!has_begun(ring, expected)) return false;
  ring.advance(sizeof expected);
  return true;
}

void end_writing(RingWriter& ring, bool last) {
  if (last) ring.end_message();
  ring.publish();
}

void end_reading(RingReader& ring, bool last) {
  if (last) ring.end_message();
  ring.release();
}

// Copies a piece of a message of `whole` bytes to the caller's memory.
void copy_out(char* to, const char* from, uint64_t bytes, uint64_t whole) {
  whole < kPastCachesBytes ? (void)std::memcpy(to, from, bytes) : copy_past_caches(to, from, bytes);
}

template <class Flow>
bool all_finished(const Flow& flows) {
  return std::all_of(flows.begin(), flows.end(), [](auto& flow) { return flow.finished(); });
}

}  // namespace

bool SendStep::move() {
  if (finished()) return false;
  bool starts = !begun && begin_writing(*ring, header), moved = starts;
  begun = begun || starts;
  while (begun && done < header.bytes) {
    auto left = header.bytes - done;
    auto bytes = whole_lines(ring->position(), ring->room(std::min(left, kPiece)), left);
    if (!bytes) break;
    ring->write(from + done, bytes);
    done += bytes;
    end_writing(*ring, finished());
    moved = true;
  }
  return moved;
}

bool RecvStep::move() {
  if (finished()) return false;
  bool starts = !begun && begin_reading(*ring, header), moved = starts;
  begun = begun || starts;
  while (begun && done < header.bytes) {
    auto left = header.bytes - done;
    auto bytes = whole_lines(ring->position(), ring->available(std::min(left, kPiece)), left);
    if (!bytes) break;
    copy_out(to + done, ring->here(), bytes, header.bytes);
    ring->advance(bytes);
    done += bytes;
    end_reading(*ring, finished());
    moved = true;
  }
  return moved;
}

// All messages begin at once, so that they are at equal offsets in their rings' cache lines.
bool ReduceStep::begin() {
  if (onward && onward->room(kCacheLineBytes) < kCacheLineBytes) return false;
  for (auto* ring : from) {
    if (ring && !has_begun(*ring, header)) return false;
  }
  for (auto* ring : from) {
    if (ring) begin_reading(*ring, header);
  }
  if (onward) begin_writing(*onward, header);
  return begun = true;
}

// The size of the next piece, for which every message and the onward ring have room.
uint64_t ReduceStep::next_piece() {
  auto left = header.bytes - done;
  auto bytes = std::min(left, kPiece);
  for (auto* ring : from) {
    if (ring) bytes = whole_lines(ring->position(), ring->available(bytes), left);
  }
  return onward ? whole_lines(onward->position(), onward->room(bytes), left) : bytes;
}

// Whether the sum is computed in a separate buffer: the target is written past the caches, or, in place, holds our own
// values, which are needed after those of two others.
// of two others.
bool ReduceStep::added_up_apart() const {
  return header.bytes >= kPastCachesBytes || (to == mine && from[0] && from[1]);
}

bool ReduceStep::move() {
  if (finished()) return false;
  bool moved = !begun && begin();
  while (begun && done < header.bytes) {
    auto bytes = next_piece();
    if (!bytes) break;
    alignas(kCacheLineBytes) char near[kPiece];
    bool in_lane = onward && !onward->past_caches();
    auto* sum = in_lane ? onward->here() : added_up_apart() ? near : to + done;
    auto value = [&](size_t member) { return from[member] ? from[member]->here() : mine + done; };
    for (size_t j = 1; j < from.size(); ++j) reduce_memory(sum, j == 1 ? value(0) : sum, value(j), bytes, type, op);
    if (sum != to + done) copy_out(to + done, sum, bytes, header.bytes);
    if (in_lane) {
      onward->advance(bytes);
    } else if (onward) {
      onward->write(sum, bytes);
    }
    done += bytes;
    if (onward) end_writing(*onward, finished());
    for (auto* ring : from) {
      if (!ring) continue;
      ring->advance(bytes);
      end_reading(*ring, finished());
    }
    moved = true;
  }
  return moved;
}

void Task::write_headers() {
  MessageHeader header;
  header.describe(call);
  auto complete = [&](auto& flow) {
    header.bytes = flow.header.bytes;
    flow.header = header;
  };
  for (auto& push : sends) complete(push);
  for (auto& pull : recvs) complete(pull);
  if (reduction) complete(*reduction);
}

bool Task::sent() const { return all_finished(sends) && (!reduction || !reduction->onward || reduction->finished()); }

bool Task::received() const { return all_finished(recvs) && (!reduction || reduction->finished()); }

uint64_t Task::unread() const {
  uint64_t bytes = 0;
  auto add = [&](auto& flow) {
    if (!flow.finished()) bytes += flow.header.bytes - flow.done + kCacheLineBytes;
  };
  for (auto& pull : recvs) add(pull);
  if (reduction) add(*reduction);
  return bytes;
}

bool Task::move(bool may_push, bool may_pull) {
  bool moved = false;
  if (may_push) {
    for (auto& push : sends) moved |= push.move();
  }
  if (may_pull && reduction && (may_push || !reduction->onward)) moved |= reduction->move();
  if (may_pull) {
    for (auto& pull : recvs) moved |= pull.move();
  }
  return moved;
}

// A reduction comes first: a rank that waits for its parts holds up others in turn.
std::vector<int64_t> Task::missing() const {
  std::vector<int64_t> members;
  if (reduction && !reduction->finished()) {
    for (auto* ring : reduction->from) {
      if (ring && !ring->available(1)) ring->behind(members);
    }
    if (members.empty() && reduction->onward) reduction->onward->behind(members);
    if (!members.empty()) return members;
  }
  for (auto& push : sends) {
    if (!push.finished()) push.ring->behind(members);
  }
  for (auto& pull : recvs) {
    if (!pull.finished() && !pull.ring->available(1)) pull.ring->behind(members);
  }
  return members;
}

}  // namespace intarsia
