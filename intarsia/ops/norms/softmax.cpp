// softmax and related ops. Over a sharded dim the values stay where they are: only the maximum and the sum of each line
// are sent.

#include <limits>

#include <ATen/ATen.h>

#include "intarsia/ops/along/layouts.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// Along `dim` every element depends on every other; all other dims may be sharded. Gradients are linear in the incoming
// one, the first tensor.
Rule along_dim(int tensors) {
  Rule rule = rows("along dim", [tensors](const OpCall& call) {
    auto rows = tensors == 2 ? linear_in_first(2) : Rows();
    auto dims = call.dims_arg("dim", call.inputs[0].dim());
    for (auto& row : independent_of(call, {dims[0]})) rows.push_back(std::move(row));
    return rows;
  });
  rule.aligned = true;
  return rule;
}

at::Tensor softmax_over(const at::Tensor& self, int64_t dim, at::ScalarType type, bool log) {
  auto x = settle(self).contiguous(self.suggest_memory_format()).to(sum_type(type));  // the plain op's strides
  auto shifted = at::sub(x, at::amax(x, dim, true));
  auto powers = at::exp(shifted);
  auto sum = at::sum(powers, dim, true);
  return (log ? at::sub(shifted, at::log(sum)) : at::div(powers, sum)).to(type);
}

// softmax(self, dim, half_to_float)
Lowering softmax_along(const CutCall& c, bool log) {
  auto& self = c.input(0);
  auto dim = c.call.dims_arg("dim", self.dim())[0];
  if (!c.cuts(0, dim) || self.numel() == 0) return {};
  auto type = c.call.bool_arg("half_to_float", false) ? at::kFloat : self.dtype;
  return [=](Stack& stack) { stack = {softmax_over(stack[0].toTensor(), dim, type, log)}; };
}

at::Tensor softmax_gradient(const at::Tensor& given, const at::Tensor& output, int64_t dim, bool log) {
  auto y = settle(output);
  auto grad = lie_like(given, y).to(sum_type(y.scalar_type()));
  y = y.to(grad.scalar_type());
  if (log) return at::sub(grad, at::mul(at::exp(y), at::sum(grad, dim, true)));
  auto weighted = at::mul(grad, y);
  return at::sub(weighted, at::mul(y, at::sum(weighted, dim, true)));
}

// softmax_backward(grad, output, dim, input_dtype)
Lowering softmax_backward_along(const CutCall& c, bool log) {
  auto& output = c.input(1);
  auto dim = c.call.dims_arg("dim", output.dim())[0];
  if (!c.cuts(1, dim) || output.numel() == 0) return {};
  return [=](Stack& stack) {
    auto result = softmax_gradient(stack[0].toTensor(), stack[1].toTensor(), dim, log);
    stack = {result.contiguous().to(stack[3].toScalarType())};
  };
}

// safe_softmax(self, dim, dtype): a line of negative infinities gives zeros.
void safe_softmax(Stack& stack) {
  auto self = stack[0].toTensor();
  auto dim = stack[1].toInt();
  auto out = at::_softmax(self.to(dtype_of(stack[2]).value_or(self.scalar_type())), dim, false);
  auto masked = at::all(at::eq(self, -std::numeric_limits<double>::infinity()), dim, true);
  stack = {at::masked_fill(out, masked, 0)};
}

}  // namespace

void add_softmax(RuleTable& t) {
  t.add({"aten::_softmax", "aten::_log_softmax"}, along_dim(1));
  t.lower("aten::_softmax", [](auto& c) { return softmax_along(c, false); });
  t.lower("aten::_log_softmax", [](auto& c) { return softmax_along(c, true); });

  t.add({"aten::_softmax_backward_data", "aten::_log_softmax_backward_data"}, along_dim(2));
  t.lower("aten::_softmax_backward_data", [](auto& c) { return softmax_backward_along(c, false); });
  t.lower("aten::_log_softmax_backward_data", [](auto& c) { return softmax_backward_along(c, true); });

  t.always("aten::_safe_softmax", safe_softmax);
  t.hands_on({"aten::softmax", "aten::log_softmax"});
}

}  // namespace intarsia
