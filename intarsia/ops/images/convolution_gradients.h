#pragma once
// The gradients of a convolution on one rank, its sums rounded less than those of the plain op.

#include <array>

#include "intarsia/ops/images/convolution_args.h"

namespace intarsia {

// Those not asked for may be undefined.
struct Gradients {
  at::Tensor input, weight, bias;
};

// The plain op's gradients that `mask` asks for; zeros where something is empty. See Note [Sums over many positions].
Gradients gradients_of(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight, const ConvArgs& args,
                       std::array<bool, 3> mask);

// The gradient of a bias: the sum over all but the channels.
at::Tensor bias_gradient(const at::Tensor& grad);

// Whether the gradient of a weight, which sums over all samples and positions of a tensor [N, C, ...] of that shape, is
// summed in blocks.
bool sums_in_blocks(at::IntArrayRef shape, at::ScalarType dtype);

}  // namespace intarsia
