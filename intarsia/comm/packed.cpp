#include "intarsia/comm/packed.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "intarsia/comm/bytes.h"
#include "intarsia/comm/coalesced_events.h"
#include "intarsia/comm/flat_list.h"
#include "intarsia/comm/reduce.h"

namespace intarsia {
namespace {

// Byte by byte, without gaps. What stands behind an odd number of bytes is copied out, never read where it lies.
at::Tensor packed_bytes(const ShardsList& list, size_t slot) {
  std::vector<at::Tensor> bytes;
  for (auto& shards : list) bytes.push_back(as_bytes(flat_values(shards[slot])));
  return pack(bytes);
}

at::Tensor room_for(int64_t bytes, const at::Tensor& like) {
  return at::empty({bytes}, like.options().dtype(at::kByte));
}

// Copying a tensor into a message and out of it costs more than a message of its own if the ranks bring this much
// together.
constexpr int64_t kAloneBytes = 128 << 10;

// The same on all ranks of a line: each knows the counts of all.
bool goes_alone(const Counts& counts, const at::Tensor& mine) {
  int64_t most = 0;
  for (auto& row : counts) most = std::max(most, std::accumulate(row.begin(), row.end(), int64_t{0}));
  return most * mine.element_size() >= kAloneBytes;
}

// Places in the list that travel in one message: all tensors of one dtype, but for those that go alone. All are checked
// before the first moves.
using Places = std::vector<size_t>;
std::vector<Places> messages_of(const char* where, const ShardsList& list, ReduceOp op, const Places& alone = {}) {
  Places together;
  std::vector<Places> messages;
  for (size_t t = 0; t < list.size(); ++t) {
    bool is_alone = std::find(alone.begin(), alone.end(), t) != alone.end();
    is_alone ? messages.push_back({t}) : together.push_back(t);
  }
  for (auto& group : places_by_dtype(together.size(), [&](size_t i) { return list[together[i]][0].scalar_type(); })) {
    for (auto& place : group) place = together[place];
    messages.push_back(std::move(group));
  }
  for (auto& group : messages) check_reducible(where, list[group[0]][0].scalar_type(), op);
  return messages;
}

Places alone_among(const ShardsList& list, const CountsList& counts) {
  Places alone;
  for (size_t t = 0; t < list.size(); ++t) {
    if (goes_alone(counts[t], list[t][0])) alone.push_back(t);
  }
  return alone;
}

// Several collectives that are finished together.
class Waits {
 public:
  explicit Waits(Wait* all) : all_(all) {}
  Wait* next() { return all_ ? &waits_.emplace_back() : nullptr; }  // valid until the following one
  void hand_over() {
    std::erase_if(waits_, [](auto& wait) { return !wait; });
    if (waits_.empty()) return;
    *all_ = [waits = std::move(waits_)] {
      for (auto& wait : waits) wait();
    };
  }

 private:
  Wait* all_;
  std::vector<Wait> waits_;
};

// Reduces dtype by dtype. `start(group, wait)` gives a flat buffer per slot, `shape(t, slot)` the next part of it.
template <class Shape, class Start>
ShardsList reduce_each(const std::vector<Places>& groups, size_t length, Wait* wait, Shape shape, Start start) {
  ShardsList results(length);
  Waits waits(wait);
  for (auto& group : groups) {
    Shards buffers = start(group, waits.next());
    for (size_t slot = 0; slot < buffers.size(); ++slot) {
      FlatParts parts(buffers[slot]);
      for (auto t : group) {  // no views: writing to one is not writing to all
        results[t].push_back(parts.next(shape(t, slot)).variable_data());
      }
    }
  }
  waits.hand_over();
  return results;
}

// The parts of every member, member by member; `totals` becomes the number of elements that each gets.
at::Tensor pack_parts(const ShardsList& send, const CountsList& counts, const Places& group, size_t slot,
                      std::vector<int64_t>& totals) {
  if (group.size() == 1) {
    totals = counts[group[0]][slot];
    return flat_values(send[group[0]][slot]);
  }
  std::vector<at::Tensor> pieces;
  std::vector<int64_t> begins(send.size(), 0);
  for (size_t member = 0; member < totals.size(); ++member) {
    for (auto t : group) {
      auto count = counts[t][slot][member];
      pieces.push_back(send[t][slot].narrow(0, begins[t], count));
      begins[t] += count;
      totals[member] += count;
    }
  }
  return pack(pieces);
}

CountsList in_bytes(CountsList counts, const ShardsList& list) {
  for (size_t t = 0; t < counts.size(); ++t) {
    for (auto& row : counts[t]) {
      for (auto& count : row) count *= list[t][0].element_size();
    }
  }
  return counts;
}

void unpack_members(const Shards& received, const ShardsList& all, const CountsList& bytes) {
  at::NoGradGuard no_grad;
  for (size_t slot = 0; slot < received.size(); ++slot) {
    std::vector<FlatParts> places;
    std::vector<at::Tensor> targets;
    for (auto& shards : all) targets.push_back(as_bytes(shards[slot]));
    for (auto& target : targets) places.emplace_back(target);
    FlatParts message(received[slot]);
    for (size_t member = 0; member < bytes[0][slot].size(); ++member) {
      for (size_t t = 0; t < all.size(); ++t) {
        auto size = bytes[t][slot][member];
        if (size) places[t].next(size).copy_(message.next(size));
      }
    }
  }
}

void gather_packed(const Axis& axis, const ShardsList& mine, const ShardsList& all, const CountsList& counts,
                   Wait* wait) {
  auto bytes = in_bytes(counts, mine);
  Shards send, receive;
  Counts totals;
  for (size_t slot = 0; slot < axis.slot_count(); ++slot) {
    auto& row = totals.emplace_back(axis.size(), 0);
    int64_t total = 0;
    for (int64_t member = 0; member < axis.size(); ++member) {
      for (auto& of_tensor : bytes) row[member] += of_tensor[slot][member];
      total += row[member];
    }
    send.push_back(packed_bytes(mine, slot));
    receive.push_back(room_for(total, send.back()));
  }
  Wait pending;
  axis.all_gather(send, receive, totals, wait ? &pending : nullptr);
  pending = then(std::move(pending), [receive, all, bytes] { unpack_members(receive, all, bytes); });
  if (wait) *wait = std::move(pending);
}

}  // namespace

ShardsList all_reduce(const Axis& axis, const ShardsList& tensors, ReduceOp op, Wait* wait) {
  if (!axis.slot_count()) return ShardsList(tensors.size());
  at::NoGradGuard no_grad;
  auto shape = [&](size_t t, size_t slot) { return tensors[t][slot].sizes().vec(); };
  auto start = [&](const Places& group, Wait* one) {
    Shards flat;
    for (size_t slot = 0; slot < axis.slot_count(); ++slot) {
      std::vector<at::Tensor> pieces;
      for (auto t : group) pieces.push_back(tensors[t][slot]);
      flat.push_back(pack(pieces));
    }
    return axis.all_reduce(flat, op, one);
  };
  return reduce_each(messages_of("all_reduce", tensors, op), tensors.size(), wait, shape, start);
}

ShardsList reduce_scatter(const Axis& axis, const ShardsList& send, const CountsList& counts, ReduceOp op, Wait* wait) {
  if (!axis.slot_count()) return ShardsList(send.size());
  at::NoGradGuard no_grad;
  auto shape = [&](size_t t, size_t slot) { return std::vector<int64_t>{counts[t][slot][axis.position(slot)]}; };
  auto start = [&](const Places& group, Wait* one) {
    Shards flat;
    Counts totals;
    for (size_t slot = 0; slot < axis.slot_count(); ++slot) {
      flat.push_back(pack_parts(send, counts, group, slot, totals.emplace_back(axis.size(), 0)));
    }
    return axis.reduce_scatter(flat, totals, op, one);
  };
  auto alone = alone_among(send, counts);
  std::optional<CoalescedEventScope> together;
  if (!alone.empty()) together.emplace();
  return reduce_each(messages_of("reduce_scatter", send, op, alone), send.size(), wait, shape, start);
}

void all_gather(const Axis& axis, const ShardsList& mine, const ShardsList& all, const CountsList& counts, Wait* wait) {
  if (mine.empty() || !axis.slot_count()) return;
  at::NoGradGuard no_grad;
  CoalescedEventScope together;
  Waits waits(wait);
  ShardsList packed, rooms;
  CountsList packed_counts;
  for (size_t t = 0; t < mine.size(); ++t) {
    if (goes_alone(counts[t], mine[t][0])) {
      axis.all_gather(mine[t], all[t], counts[t], waits.next());
      continue;
    }
    packed.push_back(mine[t]);
    rooms.push_back(all[t]);
    packed_counts.push_back(counts[t]);
  }
  if (!packed.empty()) gather_packed(axis, packed, rooms, packed_counts, waits.next());
  waits.hand_over();
}

void broadcast(const Axis& axis, const ShardsList& tensors, int64_t source, Wait* wait) {
  if (tensors.empty() || axis.size() == 1) return;
  at::NoGradGuard no_grad;
  Shards packed;
  for (size_t slot = 0; slot < axis.slot_count(); ++slot) {
    int64_t bytes = 0;
    for (auto& shards : tensors) bytes += shards[slot].nbytes();
    packed.push_back(axis.position(slot) == source ? packed_bytes(tensors, slot) : room_for(bytes, tensors[0][slot]));
  }
  Wait pending;
  axis.broadcast(packed, source, wait ? &pending : nullptr);
  pending = then(std::move(pending), [&axis, packed, tensors, source] {
    at::NoGradGuard no_grad;
    for (size_t slot = 0; slot < packed.size(); ++slot) {
      if (axis.position(slot) == source) continue;
      std::vector<at::Tensor> into;
      for (auto& shards : tensors) into.push_back(as_bytes(shards[slot]));
      unpack(packed[slot], into);
    }
  });
  if (wait) *wait = std::move(pending);
}

}  // namespace intarsia
