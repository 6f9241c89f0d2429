#pragma once
// A convolution of an image that is sharded along its own dims, rank by rank.

#include <array>

#include "intarsia/ops/images/convolution_args.h"

namespace intarsia {

// A sharded dim of the image.
struct CutDim {
  int64_t dim;
  const Axis& axis;
  Window window;
  std::vector<Interval> outputs, wanted;  // per member of the line; wanted may extend beyond the image
  RowPlan plan;
  int64_t size;

  Clipped clipped(size_t slot) const { return clip(wanted[axis.position(slot)], size); }
  Interval output(size_t slot) const { return outputs[axis.position(slot)]; }
};
using CutDims = std::vector<CutDim>;

// The sharded dims of a convolution.
CutDims cut_dims(const ConvArgs& args, const DeviceMesh& mesh, const Layout& input_layout, const TensorForm& input,
                 const Layout& output_layout, const TensorForm& output, const TensorForm& weight);

// The plain op on rows that contain their padding; zeros plus the bias if a tensor is empty.
at::Tensor convolution_of(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                          const ConvArgs& args, at::IntArrayRef shape);

// How much padding to add before and after each dim: (dim, before, after). Negative amounts crop.
using Amounts = std::vector<std::array<int64_t, 3>>;
at::Tensor padded(at::Tensor tensor, const Amounts& amounts);

// A convolution of an image that is sharded along its own dims, and its gradients: see Note [A convolution of a sharded
// image].
void convolve_cut_image(JointCall& run);
void differentiate_cut_image(JointCall& run);

}  // namespace intarsia
