#include "intarsia/tensor/rms_norm.h"

#include <limits>

#include <ATen/ATen.h>

namespace intarsia {
namespace {

at::Tensor rms_norm(const at::Tensor& input, at::IntArrayRef shape, const std::optional<at::Tensor>& weight,
                    std::optional<double> eps) {
  auto first = input.dim() - static_cast<int64_t>(shape.size());
  TORCH_CHECK(!shape.empty() && first >= 0 && input.sizes().slice(first) == shape, "Given normalized_shape=", shape,
              ", expected input with shape [*, ", shape, "], but got input of size", input.sizes());
  std::vector<int64_t> dims;
  for (auto d = first; d < input.dim(); ++d) dims.push_back(d);
  bool half = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
  auto x = (half ? input.to(at::kFloat) : input).contiguous();  // so that the result is, as the plain op's
  bool is_double = c10::toRealValueType(x.scalar_type()) == at::kDouble;
  double smallest = is_double ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  auto mean = at::mean(at::mul(x, x), dims, true);
  auto y = at::mul(x, at::rsqrt(at::add(mean, eps.value_or(smallest)))).to(input.scalar_type());
  return weight && weight->defined() ? at::mul(y, *weight) : y;
}

}  // namespace

void register_rms_norm(torch::Library& aten, torch::Library& aten_autograd) {
  aten.impl("rms_norm", rms_norm);
  aten_autograd.impl("rms_norm", rms_norm);
}

}  // namespace intarsia
