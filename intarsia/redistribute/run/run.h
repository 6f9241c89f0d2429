#pragma once
// Executes a redistribution plan on the shards of a tensor.

#include <functional>

#include "intarsia/core/shards.h"
#include "intarsia/redistribute/plan.h"
#include "intarsia/redistribute/share.h"

namespace intarsia {

// The shards after the plan. They may share memory with the ones given.
Shards run(const Plan& plan, const Shards& shards, c10::ArrayRef<int64_t> shape);

// The same, but the last collective is only begun; calling the result finishes it and yields the shards. What is under
// way is a copy: the shards given may change meanwhile, and those that come share no memory with them.
std::function<Shards()> run_async(const Plan& plan, const Shards& shards, c10::ArrayRef<int64_t> shape);

}  // namespace intarsia
