#pragma once
// Gradients of a group as flat tensors.

#include <functional>

#include "intarsia/comm/packed.h"

namespace intarsia {

// Calls `change` once for each dtype, with the parts of that dtype as one flat tensor per hosted rank. What it writes
// is written to the parts.
void change_as_flat(const ShardsList& parts, const std::function<void(const Shards&)>& change);

}  // namespace intarsia
