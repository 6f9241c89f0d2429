#include "intarsia/comm/shm/flows.h"

#include <algorithm>
#include <cstring>

#include "intarsia/comm/shm/reduce_memory.h"
#include "intarsia/core/copy_past_caches.h"

namespace intarsia {
namespace {

// What is moved before the others are told: small enough for the first cache, and for both sides to work at once.
constexpr uint64_t kPiece = 16 << 10;

bool begin_writing(LaneWriter& lane, const MessageHeader& header) {
  if (lane.room(kLineBytes) < kLineBytes) return false;
  lane.write(reinterpret_cast<const char*>(&header), sizeof header);
  return true;
}

// Whether the message is there; throws if it is another one.
bool has_begun(LaneReader& lane, const MessageHeader& expected) {
  if (lane.available(kLineBytes) < kLineBytes) return false;
  MessageHeader found;
  std::memcpy(&found, lane.here(), sizeof found);
  if (!(found == expected)) throw WrongMessage{lane.writer(), expected, found};
  return true;
}

bool begin_reading(LaneReader& lane, const MessageHeader& expected) {
  if (!has_begun(lane, expected)) return false;
  lane.advance(sizeof expected);
  return true;
}

void end_writing(LaneWriter& lane, bool last) {
  if (last) lane.end_message();
  lane.publish();
}

void end_reading(LaneReader& lane, bool last) {
  if (last) lane.end_message();
  lane.release();
}

// A piece of a message of `whole` bytes to where the caller wants it.
void copy_out(char* to, const char* from, uint64_t bytes, uint64_t whole) {
  whole < kPastCachesBytes ? (void)std::memcpy(to, from, bytes) : copy_past_caches(to, from, bytes);
}

template <class Flow>
bool all_finished(const Flow& flows) {
  return std::all_of(flows.begin(), flows.end(), [](auto& flow) { return flow.finished(); });
}

}  // namespace

bool Push::move() {
  if (finished()) return false;
  bool starts = !begun && begin_writing(*lane, header), moved = starts;
  begun = begun || starts;
  while (begun && done < header.bytes) {
    auto left = header.bytes - done;
    auto bytes = whole_lines(lane->position(), lane->room(std::min(left, kPiece)), left);
    if (!bytes) break;
    lane->write(from + done, bytes);
    done += bytes;
    end_writing(*lane, finished());
    moved = true;
  }
  return moved;
}

bool Pull::move() {
  if (finished()) return false;
  bool starts = !begun && begin_reading(*lane, header), moved = starts;
  begun = begun || starts;
  while (begun && done < header.bytes) {
    auto left = header.bytes - done;
    auto bytes = whole_lines(lane->position(), lane->available(std::min(left, kPiece)), left);
    if (!bytes) break;
    copy_out(to + done, lane->here(), bytes, header.bytes);
    lane->advance(bytes);
    done += bytes;
    end_reading(*lane, finished());
    moved = true;
  }
  return moved;
}

// All messages begin at once, so that all are as far on in their lanes' lines.
bool Reducing::begin() {
  if (onward && onward->room(kLineBytes) < kLineBytes) return false;
  for (auto* lane : from) {
    if (lane && !has_begun(*lane, header)) return false;
  }
  for (auto* lane : from) {
    if (lane) begin_reading(*lane, header);
  }
  if (onward) begin_writing(*onward, header);
  return begun = true;
}

// How much every message and the way onward allow for.
uint64_t Reducing::next_piece() {
  auto left = header.bytes - done;
  auto bytes = std::min(left, kPiece);
  for (auto* lane : from) {
    if (lane) bytes = whole_lines(lane->position(), lane->available(bytes), left);
  }
  return onward ? whole_lines(onward->position(), onward->room(bytes), left) : bytes;
}

// Not where it goes: that is past the caches, or, in place, where our own values are needed behind those of two others.
bool Reducing::added_up_apart() const { return header.bytes >= kPastCachesBytes || (to == mine && from[0] && from[1]); }

bool Reducing::move() {
  if (finished()) return false;
  bool moved = !begun && begin();
  while (begun && done < header.bytes) {
    auto bytes = next_piece();
    if (!bytes) break;
    alignas(kLineBytes) char near[kPiece];
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
    for (auto* lane : from) {
      if (!lane) continue;
      lane->advance(bytes);
      end_reading(*lane, finished());
    }
    moved = true;
  }
  return moved;
}

void Task::set_number(uint64_t number) {
  call.number = number;
  MessageHeader header;
  header.describe(call);
  auto complete = [&](auto& flow) {
    header.bytes = flow.header.bytes;
    flow.header = header;
  };
  for (auto& push : pushes) complete(push);
  for (auto& pull : pulls) complete(pull);
  if (reduction) complete(*reduction);
}

bool Task::pushed() const {
  return all_finished(pushes) && (!reduction || !reduction->onward || reduction->finished());
}

bool Task::pulled() const { return all_finished(pulls) && (!reduction || reduction->finished()); }

uint64_t Task::unread() const {
  uint64_t bytes = 0;
  auto add = [&](auto& flow) {
    if (!flow.finished()) bytes += flow.header.bytes - flow.done + kLineBytes;
  };
  for (auto& pull : pulls) add(pull);
  if (reduction) add(*reduction);
  return bytes;
}

bool Task::move(bool may_push, bool may_pull) {
  bool moved = false;
  if (may_push) {
    for (auto& push : pushes) moved |= push.move();
  }
  if (may_pull && reduction && (may_push || !reduction->onward)) moved |= reduction->move();
  if (may_pull) {
    for (auto& pull : pulls) moved |= pull.move();
  }
  return moved;
}

// A reduction comes first: who waits for its parts holds up others in turn.
std::vector<int64_t> Task::missing() const {
  std::vector<int64_t> members;
  if (reduction && !reduction->finished()) {
    for (auto* lane : reduction->from) {
      if (lane && !lane->available(1)) lane->behind(members);
    }
    if (members.empty() && reduction->onward) reduction->onward->behind(members);
    if (!members.empty()) return members;
  }
  for (auto& push : pushes) {
    if (!push.finished()) push.lane->behind(members);
  }
  for (auto& pull : pulls) {
    if (!pull.finished() && !pull.lane->available(1)) pull.lane->behind(members);
  }
  return members;
}

}  // namespace intarsia
