// softmax and its kin over a cut dim: the values stay where they are, only the largest and the sum of each line travel.

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <c10/core/WrapDimMinimal.h>

#include "intarsia/ops/layouts.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

using Stack = std::vector<c10::IValue>;

// softmax(self, dim, half_to_float)
bool softmax(Stack& stack, bool log) {
  auto self = stack[0].toTensor();
  auto dim = c10::maybe_wrap_dim(stack[1].toInt(), self.dim());
  if (!is_cut(self, dim) || self.numel() == 0) return false;
  auto type = stack[2].toBool() ? at::kFloat : self.scalar_type();
  auto x = settle(self).contiguous(self.suggest_memory_format()).to(sum_type(type));  // the plain op's strides
  auto shifted = at::sub(x, at::amax(x, dim, true));
  auto powers = at::exp(shifted);
  auto sum = at::sum(powers, dim, true);
  stack = {(log ? at::sub(shifted, at::log(sum)) : at::div(powers, sum)).to(type)};
  return true;
}

// softmax_backward(grad, output, dim, input_dtype)
bool softmax_backward(Stack& stack, bool log) {
  auto output = stack[1].toTensor();
  auto dim = c10::maybe_wrap_dim(stack[2].toInt(), output.dim());
  if (!is_cut(output, dim) || output.numel() == 0) return false;
  auto y = settle(output);
  auto grad = lie_like(stack[0].toTensor(), y).to(sum_type(y.scalar_type()));
  y = y.to(grad.scalar_type());
  at::Tensor result;
  if (log) {
    result = at::sub(grad, at::mul(at::exp(y), at::sum(grad, dim, true)));
  } else {
    auto weighted = at::mul(grad, y);
    result = at::sub(weighted, at::mul(y, at::sum(weighted, dim, true)));
  }
  stack = {result.contiguous().to(stack[3].toScalarType())};
  return true;
}

// logsumexp(self, dims, keepdim)
bool logsumexp(Stack& stack) {
  auto self = stack[0].toTensor();
  auto dims = wrapped_dims(stack[1].toIntVector(), self.dim());
  bool keep = stack[2].toBool();
  if (self.numel() == 0 || !is_cut(self, dims)) return false;
  auto type = at::isIntegralType(self.scalar_type(), true) ? at::typeMetaToScalarType(at::get_default_dtype())
                                                           : self.scalar_type();
  auto x = settle(self).to(sum_type(type));
  auto top = settle(at::amax(x.is_complex() ? at::real(x) : x, dims, true));
  top = at::masked_fill(top, at::isinf(top), 0);  // infinity minus infinity would be no number
  auto sum = at::sum(at::exp(at::sub(x, top)), dims, keep);
  if (!keep) top = at::squeeze(top, dims);
  stack = {at::add(at::log(sum), top).to(type)};
  return true;
}

// A line of minus infinities gives zeros.
bool safe_softmax(Stack& stack) {
  auto self = stack[0].toTensor();
  auto dim = stack[1].toInt();
  auto x = stack[2].isNone() ? self : self.to(stack[2].toScalarType());
  auto out = at::_softmax(x, dim, false);
  auto masked = at::all(at::eq(self, -std::numeric_limits<double>::infinity()), dim, true);
  stack = {at::masked_fill(out, masked, 0)};
  return true;
}

}  // namespace

void add_softmax_ops(RuleTable& t) {
  t.decompose("aten::_softmax", [](auto& stack) { return softmax(stack, false); });
  t.decompose("aten::_log_softmax", [](auto& stack) { return softmax(stack, true); });
  t.decompose("aten::_softmax_backward_data", [](auto& stack) { return softmax_backward(stack, false); });
  t.decompose("aten::_log_softmax_backward_data", [](auto& stack) { return softmax_backward(stack, true); });
  t.decompose("aten::logsumexp", logsumexp);
  t.decompose("aten::_safe_softmax", safe_softmax);
}

}  // namespace intarsia
