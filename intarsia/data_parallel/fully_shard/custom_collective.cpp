#include "intarsia/data_parallel/fully_shard/custom_collective.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/comm/flat_list.h"

namespace intarsia {
namespace {

// The tensors of one dtype, and the length of a member's part.
struct Batch {
  std::vector<size_t> tensors;
  int64_t part = 0;
};

std::vector<Batch> batches_of(const ShardsList& list, const CountsList& counts) {
  std::vector<Batch> batches;
  for (auto& places : places_by_dtype(list.size(), [&](size_t t) { return list[t][0].scalar_type(); }))
    batches.push_back({std::move(places)});
  for (auto& batch : batches) {
    for (size_t slot = 0; slot < list[0].size(); ++slot) {
      for (size_t j = 0; j < counts[0][slot].size(); ++j) {
        int64_t sum = 0;
        for (auto t : batch.tensors) sum += counts[t][slot][j];
        batch.part = std::max(batch.part, sum);
      }
    }
  }
  return batches;
}

// Calls what(tensor, begin in the buffer, begin in the tensor, count) for the runs that member j has of each tensor.
template <class What>
void for_each_run(const Batch& batch, const CountsList& counts, size_t slot, size_t j, const What& what) {
  auto place = static_cast<int64_t>(j) * batch.part;
  for (auto t : batch.tensors) {
    auto& row = counts[t][slot];
    int64_t before = 0;
    for (size_t i = 0; i < j; ++i) before += row[i];
    if (row[j]) what(t, place, before, row[j]);
    place += row[j];
  }
}

void finish(std::vector<Wait> waits, Wait* wait) {
  auto all = [waits = std::move(waits)] {
    for (auto& one : waits) one();
  };
  if (wait) {
    *wait = all;
  } else {
    all();
  }
}

}  // namespace

void all_gather_by(const CustomCollective& own, const Axis& axis, const ShardsList& mine, const ShardsList& all,
                   const CountsList& counts, Wait* wait) {
  std::vector<Wait> waits;
  for (auto& batch : batches_of(mine, counts)) {
    if (batch.part == 0) continue;
    auto buffers = own.allocate(batch.part * axis.size(), mine[batch.tensors[0]][0].scalar_type());
    Shards given;
    for (size_t slot = 0; slot < axis.slot_count(); ++slot) {
      auto position = static_cast<size_t>(axis.position(slot));
      given.push_back(buffers[slot].narrow(0, axis.position(slot) * batch.part, batch.part));
      for_each_run(batch, counts, slot, position, [&](size_t t, int64_t place, int64_t, int64_t count) {
        buffers[slot].narrow(0, place, count).copy_(mine[t][slot]);
      });
    }
    waits.push_back([batch, buffers, all, counts, size = axis.size(), arrived = own.run(buffers, given)] {
      if (arrived) arrived();
      for (size_t slot = 0; slot < buffers.size(); ++slot) {
        for (int64_t j = 0; j < size; ++j) {
          for_each_run(batch, counts, slot, j, [&](size_t t, int64_t place, int64_t begin, int64_t count) {
            all[t][slot].narrow(0, begin, count).copy_(buffers[slot].narrow(0, place, count));
          });
        }
      }
    });
  }
  finish(std::move(waits), wait);
}

ShardsList reduce_scatter_by(const CustomCollective& own, const Axis& axis, const ShardsList& send,
                             const CountsList& counts, Wait* wait) {
  ShardsList parts(send.size());
  std::vector<Wait> waits;
  for (auto& batch : batches_of(send, counts)) {
    auto dtype = send[batch.tensors[0]][0].scalar_type();
    auto given = own.allocate(batch.part * axis.size(), dtype), sums = own.allocate(batch.part, dtype);
    Shards flat;  // the parts are views of it, without padding
    for (size_t slot = 0; slot < axis.slot_count(); ++slot) {
      given[slot].zero_();
      for (int64_t j = 0; j < axis.size(); ++j) {
        for_each_run(batch, counts, slot, j, [&](size_t t, int64_t place, int64_t begin, int64_t count) {
          given[slot].narrow(0, place, count).copy_(send[t][slot].narrow(0, begin, count));
        });
      }
      int64_t length = 0;
      for (auto t : batch.tensors) length += counts[t][slot][axis.position(slot)];
      flat.push_back(at::empty({length}, at::TensorOptions().dtype(dtype)));
      FlatParts of_slot(flat[slot]);
      for (auto t : batch.tensors) parts[t].push_back(of_slot.next(counts[t][slot][axis.position(slot)]));
    }
    waits.push_back([flat, sums, given, arrived = own.run(sums, given)] {
      if (arrived) arrived();
      for (size_t slot = 0; slot < flat.size(); ++slot) flat[slot].copy_(sums[slot].narrow(0, 0, flat[slot].numel()));
    });
  }
  finish(std::move(waits), wait);
  return parts;
}

}  // namespace intarsia
