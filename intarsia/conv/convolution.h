#pragma once
// The arguments of a convolution, and the ways to cut it.

#include <vector>

#include "intarsia/conv/window.h"
#include "intarsia/rules/rule.h"

namespace intarsia {

// The plain arguments, one number per dim of the image.
struct ConvArgs {
  std::vector<int64_t> stride, padding, dilation, output_padding;
  bool transposed;
  int64_t groups;

  Window window(const TensorForm& weight, int64_t dim) const;
};

// `spatial`: the number of dims of the image.
ConvArgs conv_args(const OpCall& call, int64_t spatial);

// Rows for one axis: batch, channels, groups; and with `image` also the dims of the image, which exchange rows.
Rule convolution_rule(bool image);
Rule convolution_backward_rule(bool image);

// The shapes of convolutions of tensors without data, which LibTorch leaves to backends.
void register_convolution_shapes();

}  // namespace intarsia
