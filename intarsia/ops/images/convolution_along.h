#pragma once
// Convolutions (not transposed) of an image that is sharded along one dim: see Note [Interior and border].

#include "intarsia/ops/images/cut_convolution.h"

namespace intarsia {

// The forward and the backward pass; `cut` is the sharded dim.
void convolution_along(JointCall& run, const ConvArgs& args, const CutDim& cut);
void convolution_backward_along(JointCall& run, const ConvArgs& args, const CutDim& cut, std::array<bool, 3> mask);

}  // namespace intarsia
