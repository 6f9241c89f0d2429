#pragma once
// Elementwise reductions of two tensors, for every dtype.

#include <ATen/core/Tensor.h>

#include "intarsia/core/placement.h"

namespace intarsia {

// out = op(a, b), elementwise, for every dtype for which op has a meaning. `out` may be `a`. Not avg.
void reduce(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, ReduceOp op);

// `result` becomes the reduction of the `n` parts, which follow each other, in their order. Not avg.
void reduce_parts(const at::Tensor& parts, int64_t n, at::Tensor result, ReduceOp op);

// Raises an error unless `op` has a meaning for the dtype; called before anything is sent, so that every rank raises
// it. `where` is the function that the error names.
void check_reducible(const char* where, at::ScalarType type, ReduceOp op);

}  // namespace intarsia
