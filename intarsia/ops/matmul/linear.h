#pragma once
// linear and matmul as single ops with their own gradients. LibTorch folds the leading dims of [b, s, h] into one
// before it multiplies, and s cannot stay sharded through that; here it can. This header has what the two share.

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

namespace intarsia {

// contract(a [..., n], b [..., k]) = sum over all leading dims of a * b, [n, k]: the gradient of a weight.
// Differentiable.
at::Tensor contract(const at::Tensor& a, const at::Tensor& b);

// Whether a gradient may be requested, backward or forward; if not, a node of the graph would be useless.
template <class... Tensors>
bool needs_node(const Tensors&... tensors) {
  auto followed = [](const at::Tensor& t) {
    return t.defined() && ((at::GradMode::is_enabled() && t.requires_grad()) || t._fw_grad(0).defined());
  };
  return (followed(tensors) || ...);
}

}  // namespace intarsia
