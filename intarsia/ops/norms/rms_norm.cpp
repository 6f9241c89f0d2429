// rms_norm in differentiable ops without in-place writes: LibTorch adds eps in place to a mean, which is a pending sum
// if the normalized dim is sharded.

#include <limits>

#include <ATen/ATen.h>

#include "intarsia/ops/along/layouts.h"
#include "intarsia/ops/norms/parts.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

at::Tensor rms_norm(const at::Tensor& input, at::IntArrayRef shape, const std::optional<at::Tensor>& weight,
                    std::optional<double> eps) {
  auto first = input.dim() - static_cast<int64_t>(shape.size());
  TORCH_CHECK(!shape.empty() && first >= 0 && input.sizes().slice(first) == shape, "Given normalized_shape=", shape,
              ", expected input with shape [*, ", shape, "], but got input of size", input.sizes());
  auto x = input.to(sum_type(input.scalar_type())).contiguous();  // so that the result is contiguous, as the plain op's
  bool is_double = c10::toRealValueType(x.scalar_type()) == at::kDouble;
  double smallest = is_double ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  auto mean = at::mean(at::mul(x, x), dims_from(first, input.dim()), true);
  auto y = at::mul(x, at::rsqrt(at::add(mean, eps.value_or(smallest)))).to(input.scalar_type());
  return weight && weight->defined() ? at::mul(y, *weight) : y;
}

}  // namespace

void add_rms_norm(RuleTable& t) { t.composite("aten::rms_norm", rms_norm); }

}  // namespace intarsia
