#pragma once
// Copy-on-write sharing of memory between simulated ranks that hold the same value.
//
// Note [Twins]
// If several ranks of a simulation get the same value (from a gather, a broadcast, an op whose arguments are twins), it
// is computed once, and the ranks' tensors are twins: each has its own storage, and the storages share one memory.
// Before LibTorch hands out a pointer for writing (StorageImpl::mutable_data), it calls a function that the storage may
// carry; ours gives that storage separate memory, a copy unless it is the last holder. So a write to one rank's tensor,
// by an op, through a view, through from_local or with a pointer, changes that rank's tensor only, as in a job of
// processes, and the layers above are correct without knowing about twins.
//
// Work that would be identical on ranks with twins runs once, and its results are twins: made_once, write_once, and
// call_on_all_slots in dispatch. That saves work and can be left out anywhere.
//
// Memory becomes shared only while no pointer for writing to it can exist: when it has just been allocated here
// (twin_of, shareable). Taking such a pointer later first separates the storage from its twins.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "intarsia/core/shards.h"

namespace intarsia {

// Whether both are the same view of the same memory, and so bitwise equal. True for a tensor and itself.
bool are_twins(const at::Tensor& a, const at::Tensor& b);

// Whether one write may stand for the same write to both: their storages share one memory, or are one storage.
bool may_write_once(const at::Tensor& a, const at::Tensor& b);

// A hash that is equal for twins.
uint64_t twin_hash(const at::Tensor& tensor);

// A twin of a tensor that has just been created.
at::Tensor twin_of(const at::Tensor& value);

// Marks a tensor that has just been created: until it is written to, it may become a twin of others.
at::Tensor shareable(at::Tensor tensor);
// Whether both are marked so, cover their storages and have one form.
bool may_become_twins(const at::Tensor& a, const at::Tensor& b);

// Appends to `rooms` a tensor that receives the result of a collective on the next of `slots`. With several slots it
// may become a twin of others; if it has the sizes of the previous one, it takes no memory until it is written to.
void add_room(Shards& rooms, at::IntArrayRef sizes, const at::TensorOptions& options, size_t slots);

// Gives `target` the values of `value`: as its twin if they may become twins, else by a copy. All views of `target` see
// them.
void become_twin(const at::Tensor& target, const at::Tensor& value);

// The counterpart of `result`, which was computed from the tensors `from`, for their twins `to`: if `result` is one of
// `from` or a view of it, then that tensor of `to` or the same view of it; else a twin of `result`.
at::Tensor made_from(const at::Tensor& result, c10::ArrayRef<at::Tensor> from, c10::ArrayRef<at::Tensor> to);

// While alive, a write to a tensor also stands for its twins, or for tensors that may become twins. They take over the
// new values when this object is destroyed. Meanwhile they release their memory, so that the write need not copy it,
// except memory that the write reads.
class WriteForTwins {
 public:
  explicit WriteForTwins(c10::ArrayRef<at::Tensor> read = {});
  ~WriteForTwins();
  WriteForTwins(const WriteForTwins&) = delete;
  WriteForTwins& operator=(const WriteForTwins&) = delete;

  void add(const at::Tensor& first, const at::Tensor& twin);

 private:
  std::vector<c10::StorageImpl*> read_;                        // in ascending order
  std::vector<std::pair<c10::Storage, c10::Storage>> follow_;  // first, twin
};

// For each of `count` items, the index of the first equal one; hash(i) == hash(j) where same(i, j).
template <class Hash, class Same>
std::vector<size_t> first_alike(size_t count, Hash hash, Same same) {
  if (count <= 1) return std::vector<size_t>(count, 0);
  size_t room = 2;
  while (room < 2 * count) room *= 2;
  std::vector<size_t> firsts(room, count), first(count);
  for (size_t i = 0; i < count; ++i) {
    uint64_t place = hash(i) * 0x9E3779B97F4A7C15;
    place ^= place >> 32;
    for (;; ++place) {
      auto& known = firsts[place % room];
      if (known == count) known = i;
      if (known != i && !same(i, known)) continue;
      first[i] = known;
      break;
    }
  }
  return first;
}

// The same for tensors that are twins.
inline std::vector<size_t> first_twins(const Shards& tensors) {
  return first_alike(
      tensors.size(), [&](size_t i) { return twin_hash(tensors[i]); },
      [&](size_t i, size_t j) { return are_twins(tensors[i], tensors[j]); });
}

// make(slot) for every slot. `first` has the first slot of each set of equal slots, whose result all of the set get. A
// result is new or derived from `from`.
template <class Make>
Shards made_once(const std::vector<size_t>& first, const Shards& from, Make make) {
  Shards result;
  for (size_t slot = 0; slot < first.size(); ++slot) {
    auto leader = first[slot];
    result.push_back(leader == slot ? make(slot) : made_from(result[leader], from[leader], from[slot]));
  }
  return result;
}

// make(tensor) for every tensor; twins get twins of one result.
template <class Make>
Shards made_once(const Shards& from, Make make) {
  if (from.size() == 1) return {make(from[0])};
  return made_once(first_twins(from), from, [&](size_t slot) { return make(from[slot]); });
}

// write(slot) writes to targets[slot] what it reads from beside[slot], if there is one; it runs once for twins.
template <class Write>
void write_once(const Shards& targets, const Shards& beside, Write write) {
  auto hash = [&](size_t i) { return twin_hash(targets[i]) + 3 * (beside.empty() ? 0 : twin_hash(beside[i])); };
  auto same = [&](size_t i, size_t j) {
    return may_write_once(targets[i], targets[j]) && (beside.empty() || are_twins(beside[i], beside[j]));
  };
  auto first = first_alike(targets.size(), hash, same);
  for (size_t slot = 0; slot < targets.size(); ++slot) {
    if (first[slot] != slot) continue;
    WriteForTwins twins(beside.empty() ? at::Tensor() : beside[slot]);
    for (size_t other = slot + 1; other < targets.size(); ++other) {
      if (first[other] == slot) twins.add(targets[slot], targets[other]);
    }
    write(slot);
  }
}

}  // namespace intarsia
