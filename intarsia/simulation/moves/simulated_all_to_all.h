#pragma once
// The all-to-all between layouts in a simulation, where this process holds the data of all ranks.

#include <functional>

#include "intarsia/core/shards.h"
#include "intarsia/redistribute/plan.h"

namespace intarsia {

// Note [Simulated all-to-all]
// Pairs of ranks are many: 1,024 ranks make a million of them, and for what all ranks end up with, each pair's piece is
// a copy of what others get. So nothing is traded. What the members of a line hold together is laid out once, and every
// shard is cut from that; ranks whose shards are the same get twins (see Note [Twins]), as do lines whose members bring
// twins. The values, the trace and the time of arrival are those of a trade between pairs, which processes make.

// Carries out an all-to-all of a plan; calling the result finishes it and yields the shards. With `later` it is only
// begun, with a copy of what is sent.
std::function<Shards()> simulated_all_to_all(const Step& step, const Shards& shards, c10::ArrayRef<int64_t> shape,
                                             bool later);

}  // namespace intarsia
