#pragma once
// The all-to-all between layouts in a simulation, where this process holds the data of all ranks.

#include <functional>

#include "intarsia/core/shards.h"
#include "intarsia/redistribute/plan.h"

namespace intarsia {

// Note [Played all-to-all]
// There are many pairs of ranks: 1,024 ranks make a million, and if all ranks end up with the same, each pair's piece
// is a copy of what others get. So nothing is exchanged in pairs. The data that the members of a line hold together is
// assembled once, and every shard is taken from that; ranks whose shards are the same get twins (see Note [Twins]), as
// do lines whose members bring twins. The values, the trace and the time of arrival are those of the exchange between
// pairs in real jobs.

// Runs an all-to-all of a plan; calling the result finishes it and yields the shards. With `later` it is only started,
// with a copy of what is sent.
std::function<Shards()> play_all_to_all(const Step& step, const Shards& shards, c10::ArrayRef<int64_t> shape,
                                        bool later);

}  // namespace intarsia
