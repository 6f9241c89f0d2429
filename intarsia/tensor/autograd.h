#pragma once
// The differentiable conversions between plain and distributed tensors: from_local, to_local, redistribute,
// full_tensor.

#include <ATen/core/Tensor.h>

#include "intarsia/tensor/dtensor.h"

namespace intarsia {

// Redistributes `tensor` to `to`. Backward: redistributes the gradient back, with pending reductions read as
// replicated.
at::Tensor redistribute_with_grad(const at::Tensor& tensor, const Layout* to, bool async_op);

// Local to distributed. Backward: the gradient's shard, in the same layout.
at::Tensor from_local_with_grad(const at::Tensor& local, const Layout* layout, const FromLocalOptions& options);

// Distributed to local. Backward: the local gradients are the shards of a gradient with the layout `grad_layout`.
at::Tensor to_local_with_grad(const at::Tensor& tensor, const Layout* grad_layout);

// A replicated tensor to a plain one: all ranks hold the same, so a simulation needs only one.
at::Tensor whole_with_grad(const at::Tensor& replicated, const Layout* grad_layout);

}  // namespace intarsia
