#pragma once
// The gradients of a convolution on one rank, whose sums are rounded less than those of the plain op.

#include <array>

#include "intarsia/ops/images/convolution_args.h"

namespace intarsia {

// Those that are not requested may be undefined.
struct Gradients {
  at::Tensor input, weight, bias;
};

// The plain op's gradients that `mask` requests; zeros if a tensor is empty. See Note [Sums over many positions].
Gradients gradients_of(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight, const ConvArgs& args,
                       std::array<bool, 3> mask);

// The gradient of a bias: the sum over all but the channels.
at::Tensor bias_gradient(const at::Tensor& grad);

// Whether the gradient of a weight, which sums over all samples and positions of a tensor [N, C, ...] of that shape, is
// summed in blocks.
bool sums_in_blocks(at::IntArrayRef shape, at::ScalarType dtype);

}  // namespace intarsia
