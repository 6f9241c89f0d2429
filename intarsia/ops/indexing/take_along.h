#pragma once
// Slices at the places of an index vector, along a dim that is cut. One exchange brings every rank those of its share.

#include <functional>

#include <ATen/core/Tensor.h>

#include "intarsia/rules/lowering.h"

namespace intarsia {

// Whether tensor `index` of the call is a vector of places along `dim` of tensor 0, which is cut there, and known in
// whole to every rank that takes part.
bool takes_along_cut(const CutCall& c, size_t index, int64_t dim);

// The plain op on any tensor, with an index that is out of range somewhere: its error is that of the call.
using PlainTake = std::function<void(const at::Tensor& self, const at::Tensor& index)>;

// The slices of `self`, cut as it is. Places that `wraps` count from the end where they are negative.
at::Tensor take_along(const at::Tensor& self, int64_t dim, const at::Tensor& index, bool wraps, const PlainTake& plain);

}  // namespace intarsia
