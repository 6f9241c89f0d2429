#pragma once
// Collectives over a list of tensors that travel together: small ones packed into one message, large ones each straight
// from and into their places.
//
// The list is the same on all ranks of a line: as many tensors, of the same dtypes in the same order. They may be
// uneven, empty and of any dtypes. What comes out are the values that Axis gives for each tensor by itself, to the bit
// where Axis promises that. What an all_gather or a broadcast packs is one message, of bytes; in a reduction it is one
// for each dtype, and its results are parts of one buffer: the memory of all of them stays while one lives.

#include <cstdint>
#include <vector>

#include "intarsia/comm/axis.h"

namespace intarsia {

using ShardsList = std::vector<Shards>;  // [tensor][slot]
using CountsList = std::vector<Counts>;  // [tensor][slot][member], in elements of that tensor

ShardsList all_reduce(const Axis& axis, const ShardsList& tensors, ReduceOp op, Wait* wait = nullptr);

void all_gather(const Axis& axis, const ShardsList& mine, const ShardsList& all, const CountsList& counts,
                Wait* wait = nullptr);

ShardsList reduce_scatter(const Axis& axis, const ShardsList& send, const CountsList& counts, ReduceOp op,
                          Wait* wait = nullptr);

// In place.
void broadcast(const Axis& axis, const ShardsList& tensors, int64_t source, Wait* wait = nullptr);

}  // namespace intarsia
