#pragma once
// Executes a redistribution plan on the shards of a tensor.

#include <functional>

#include "intarsia/core/shards.h"
#include "intarsia/redistribute/plan.h"
#include "intarsia/redistribute/share.h"

namespace intarsia {

// The shards after the plan. They may share memory with the given ones.
Shards run(const Plan& plan, const Shards& shards, c10::ArrayRef<int64_t> shape);

// The same, but the last collective is only started; calling the result finishes it and yields the shards. A copy is
// sent: the given shards may change meanwhile, and the result shares no memory with them.
std::function<Shards()> run_async(const Plan& plan, const Shards& shards, c10::ArrayRef<int64_t> shape);

}  // namespace intarsia
