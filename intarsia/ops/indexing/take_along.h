#pragma once
// Selects slices by an index vector along a sharded dim. One exchange sends every rank the slices of its shard.

#include <functional>

#include <ATen/core/Tensor.h>

#include "intarsia/rules/lowering.h"

namespace intarsia {

// Whether tensor `index` of the call is a vector of indices into `dim` of tensor 0, which is sharded along it, and
// every participating rank knows the whole vector.
bool takes_along_cut(const CutCall& c, size_t index, int64_t dim);

// Calls the plain op on any tensor, with an index that is out of range somewhere: its error becomes that of the call.
using PlainTake = std::function<void(const at::Tensor& self, const at::Tensor& index)>;

// The slices of `self`, sharded as it is. With `wraps`, negative indices count from the end.
at::Tensor take_along(const at::Tensor& self, int64_t dim, const at::Tensor& index, bool wraps, const PlainTake& plain);

}  // namespace intarsia
