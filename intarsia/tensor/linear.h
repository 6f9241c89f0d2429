#pragma once
// linear and matmul as single ops with gradients of their own. LibTorch folds the leading dims of [b, s, h] into one
// before it multiplies, and a cut of s does not survive that; here it does.

#include <torch/library.h>

namespace intarsia {

// Adds the kernels that stand above dispatch.
void register_linear(torch::Library& aten_autograd);

// matmul by way of dot, mv and mm where these serve; undefined for tensors with batch dims.
at::Tensor small_matmul(const at::Tensor& a, const at::Tensor& b);

}  // namespace intarsia
