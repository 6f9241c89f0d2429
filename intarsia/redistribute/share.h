#pragma once
// Computes one rank's shard of a value that every rank has: a slice under Shard, a term of the reduction under Partial.

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include "intarsia/core/layout.h"

namespace intarsia {

// Note [A value as a pending reduction]
// A value x becomes Partial(op) so that reducing the ranks' shares gives x back: the first rank of the axis holds x and
// the others the neutral element, or all hold x if a reduction of equal values is that value. This is exact, except
// that a sum turns -0 into 0, and that an average over a number of ranks that is not a power of two rounds.

// The value that leaves every x of the dtype unchanged when reduced with it: 0 for sum, the lowest number for max. An
// average has none.
c10::Scalar neutral_element(ReduceOp op, c10::ScalarType dtype);

// Whether the rank at `position` of an axis holds the value itself, not the neutral element.
bool holds_value(ReduceOp op, int64_t position);
// The same on all axes of a layout where a reduction is pending.
bool holds_value(const Layout& layout, c10::ArrayRef<int64_t> coordinate);

// The share of the rank at `position` of an axis: the value itself or the neutral element.
at::Tensor share_of(const at::Tensor& value, ReduceOp op, int64_t position);
// The same for a number, on all axes of a layout.
c10::Scalar share_of(const c10::Scalar& value, const Layout& layout, c10::ArrayRef<int64_t> coordinate);

// Part `index` of `parts` of a local tensor, split as the placement (Shard or StridedShard) splits. A view where
// possible.
at::Tensor part_of(const at::Tensor& tensor, const Placement& placement, int64_t parts, int64_t index);

// All parts, one after the other, in few tensors: parts of equal size are in one.
std::vector<at::Tensor> parts_in_order(const at::Tensor& tensor, const Placement& placement, int64_t parts);

// The shard at `coordinate` of a whole tensor: its part on sharding axes, its share on pending ones. A view where
// possible.
at::Tensor shard_of(const at::Tensor& whole, const Layout& layout, c10::ArrayRef<int64_t> coordinate);

}  // namespace intarsia
