#pragma once
// A convolution seen along the dims of the image that are cut.

#include <array>

#include "intarsia/conv/convolution.h"
#include "intarsia/conv/spread.h"

namespace intarsia {

struct CutDim {
  int64_t dim;
  const Axis& axis;
  Window window;
  std::vector<Interval> outputs, wanted;  // per member of the line; wanted may stick out of the image
  RowPlan plan;
  int64_t size;

  Clipped clipped(size_t slot) const { return clip(wanted[axis.position(slot)], size); }
  Interval output(size_t slot) const { return outputs[axis.position(slot)]; }
};
using CutDims = std::vector<CutDim>;

CutDims cut_dims(const ConvArgs& args, const DeviceMesh& mesh, const Layout& input_layout, const TensorForm& input,
                 const Layout& output_layout, const TensorForm& output, const TensorForm& weight);

// The plain op on rows that have their padding; zeros, and the bias, where something is empty.
at::Tensor convolution_of(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, const ConvArgs& args,
                          at::IntArrayRef shape);

// Its gradients, of which those not in `mask` may be undefined.
struct Gradients {
  at::Tensor input, weight, bias;
};
Gradients gradients_of(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight, const ConvArgs& args,
                       std::array<bool, 3> mask);

// Convolutions, not transposed, of an image that is cut along one dim: see Note [Interior and border].
void convolution_along(Spread& run, const ConvArgs& args, const CutDim& cut);
void convolution_backward_along(Spread& run, const ConvArgs& args, const CutDim& cut, std::array<bool, 3> mask);

}  // namespace intarsia
