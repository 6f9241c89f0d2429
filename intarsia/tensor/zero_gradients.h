#pragma once
// Gradients that LibTorch's formulas make of nothing.

#include <torch/library.h>

namespace intarsia {

// Note [Gradients of nothing]
// Some formulas answer with fresh zeros of the input's shape instead of computing from the gradient: copysign for the
// sign's operand, nextafter for the direction, cat for an empty list entry of one dim. Those zeros are plain tensors.
// A hook behind such an op's node turns them into distributed zeros that lie as the input did.
void register_zero_gradients(torch::Library& autograd);

}  // namespace intarsia
