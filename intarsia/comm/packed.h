#pragma once
// Collectives over a list of tensors: small ones are packed into one message, large ones are sent from and received
// into their own memory.
//
// The list is the same on all ranks of a line: equally many tensors, of the same dtypes in the same order. They may be
// uneven, empty and of any dtypes. The results are the values that Axis gives for each tensor separately, to the bit
// where Axis promises that. An all_gather or a broadcast packs into one message of bytes; a reduction into one for each
// dtype, and its results are parts of one buffer, whose memory stays while one of them lives.

#include <cstdint>
#include <vector>

#include "intarsia/comm/axis.h"

namespace intarsia {

using ShardsList = std::vector<Shards>;  // [tensor][slot]
using CountsList = std::vector<Counts>;  // [tensor][slot][member], in elements of that tensor

// The collectives of Axis, for each tensor of the list.
ShardsList all_reduce(const Axis& axis, const ShardsList& tensors, ReduceOp op, Wait* wait = nullptr);

void all_gather(const Axis& axis, const ShardsList& mine, const ShardsList& all, const CountsList& counts,
                Wait* wait = nullptr);

ShardsList reduce_scatter(const Axis& axis, const ShardsList& send, const CountsList& counts, ReduceOp op,
                          Wait* wait = nullptr);

// In place.
void broadcast(const Axis& axis, const ShardsList& tensors, int64_t source, Wait* wait = nullptr);

}  // namespace intarsia
