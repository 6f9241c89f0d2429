#include "intarsia/ops/norms/parts.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace intarsia {

std::vector<int64_t> dims_from(int64_t first, int64_t ndim) {
  std::vector<int64_t> dims;
  for (auto d = first; d < ndim; ++d) dims.push_back(d);
  return dims;
}

at::Tensor scaled(const at::Tensor& x, const at::Tensor& weight) {
  return weight.defined() ? at::mul(x, weight.to(x.scalar_type())) : x;
}

at::Tensor scaled_and_moved(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  auto y = scaled(x, weight);
  return bias.defined() ? at::add(y, bias.to(y.scalar_type())) : y;
}

at::Tensor along_channels(const at::Tensor& values, const at::Tensor& x) {
  std::vector<int64_t> shape(x.dim(), 1);
  shape[1] = x.size(1);
  return values.defined() ? values.reshape(shape) : values;
}

at::ScalarType weight_type(const at::Tensor& weight, const at::Tensor& input) {
  return weight.defined() ? weight.scalar_type() : input.scalar_type();
}

std::vector<c10::ScalarType> norm_dtypes(const OpCall& call) {
  auto& last = *std::find_if(call.inputs.rbegin(), call.inputs.rend(), [](auto& form) { return form.defined; });
  std::vector<c10::ScalarType> dtypes = {call.inputs[0].dtype, last.dtype, last.dtype};
  if (call.arg_index("output_mask") < 0) return dtypes;
  auto asked = call.arg("output_mask").toBoolList();
  for (size_t i = 0; i < dtypes.size(); ++i) {
    if (!asked[i]) dtypes[i] = c10::ScalarType::Undefined;
  }
  return dtypes;
}

}  // namespace intarsia
