#pragma once
// A group's gradients as flat tensors.

#include <functional>

#include "intarsia/comm/packed.h"

namespace intarsia {

// Calls `change` once for each dtype, with the parts of that dtype as one flat tensor per hosted rank. The parts get
// the changes.
void change_as_flat(const ShardsList& parts, const std::function<void(const Shards&)>& change);

}  // namespace intarsia
