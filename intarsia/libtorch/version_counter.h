#pragma once
// The counters by which LibTorch knows that a tensor was written to.

#include <ATen/core/Tensor.h>

namespace intarsia {

// One counter for tensors that view one memory: a write to one is a write to both. Tensors made in inference mode have none.
void share_counter(const at::Tensor& tensor, const at::Tensor& owner);

}  // namespace intarsia
