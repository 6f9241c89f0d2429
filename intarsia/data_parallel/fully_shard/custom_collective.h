#pragma once
// Custom functions that carry a group's messages in place of the engine.

#include <cstdint>
#include <functional>

#include <c10/core/ScalarType.h>

#include "intarsia/comm/packed.h"

namespace intarsia {

// Flat buffers, one per hosted rank, equally long on all ranks: a member's part is padded if others have more.
struct CustomCollective {
  std::function<Shards(int64_t elements, at::ScalarType dtype)> allocate;
  // All_gather: every `result` becomes the `given` of all members, one after the other; `given` is this member's place
  // in it. Reduce_scatter: `result` becomes the sum of this member's part of all `given`. Either at once, or when the
  // returned function is called.
  std::function<Wait(const Shards& result, const Shards& given)> run;
};

// As in packed.h, with one call for each dtype. The reduction is a sum.
void all_gather_by(const CustomCollective& own, const Axis& axis, const ShardsList& mine, const ShardsList& all,
                   const CountsList& counts, Wait* wait);
ShardsList reduce_scatter_by(const CustomCollective& own, const Axis& axis, const ShardsList& send,
                             const CountsList& counts, Wait* wait);

}  // namespace intarsia
