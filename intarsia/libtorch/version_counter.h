#pragma once
// Access to LibTorch's version counters, which count writes to a tensor.

#include <ATen/core/Tensor.h>

namespace intarsia {

// Makes `tensor` share the counter of `owner`, for tensors that view one memory: a write to one is a write to both.
// Tensors made in inference mode have no counter.
void share_counter(const at::Tensor& tensor, const at::Tensor& owner);

}  // namespace intarsia
