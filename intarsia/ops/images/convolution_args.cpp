#include "intarsia/ops/images/convolution_args.h"

namespace intarsia {
namespace {

std::vector<int64_t> expanded(std::vector<int64_t> values, int64_t count) {
  if (values.size() == 1 && count > 1) values.assign(count, values[0]);
  return values;
}

}  // namespace

Window ConvArgs::window(const TensorForm& weight, int64_t dim) const {
  auto i = dim - 2;
  return {weight.sizes[dim], stride[i], padding[i], dilation[i], transposed};
}

ConvArgs conv_args(const OpCall& call, int64_t spatial) {
  auto list = [&](const char* name) { return expanded(call.arg(name).toIntVector(), spatial); };
  return {list("stride"),
          list("padding"),
          list("dilation"),
          list("output_padding"),
          call.bool_arg("transposed", false),
          call.int_arg("groups", 1)};
}

}  // namespace intarsia
