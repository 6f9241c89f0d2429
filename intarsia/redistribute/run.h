#pragma once
// Carries out a plan on the shards of a tensor. All changes of layout are made here. Other data travels too: what ops
// along a cut exchange (ops/along, ops/images/rows), what distribute_tensor deals out. All of it passes through Axis.

#include <functional>

#include "intarsia/core/shards.h"
#include "intarsia/redistribute/plan.h"

namespace intarsia {

// The shards after the plan. They may share memory with the ones given.
Shards run(const Plan& plan, const Shards& shards, c10::ArrayRef<int64_t> shape);

// The same, but the last collective is only begun; calling the result finishes it and yields the shards.
std::function<Shards()> run_async(const Plan& plan, const Shards& shards, c10::ArrayRef<int64_t> shape);

// Part `index` of `parts` of a local tensor, cut as the placement (Shard or StridedShard) cuts. A view where possible.
at::Tensor part_of(const at::Tensor& tensor, const Placement& placement, int64_t parts, int64_t index);

// The shard at `coordinate` of a whole tensor; a view where possible. Partial axes get the whole value's share:
// see Note [A value as a pending reduction].
at::Tensor shard_of(const at::Tensor& whole, const Layout& layout, c10::ArrayRef<int64_t> coordinate);

}  // namespace intarsia
