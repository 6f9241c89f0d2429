#pragma once
// The arguments of a convolution.

#include <vector>

#include "intarsia/ops/images/window.h"
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

}  // namespace intarsia
