// Binary losses, as LibTorch defines them, written in pointwise ops and sums.

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/ops/along/layouts.h"
#include "intarsia/ops/losses/mean.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// A loss or its gradient that is elementwise for these reductions; other reductions run by other ops.
Rule only_elementwise(std::vector<int64_t> reductions) {
  auto elementwise = pointwise();
  Rule rule = rows("loss", [elementwise, reductions](const OpCall& call) {
    bool fits = std::find(reductions.begin(), reductions.end(), reduction_of(call)) != reductions.end();
    return fits ? elementwise.rows(call) : Rows();
  });
  rule.aligned = true;
  return std::move(rule).with_shapes(elementwise.form.shapes);
}

at::Tensor reduced(const at::Tensor& loss, int64_t reduction) {
  return reduction == kNone ? loss : reduction == kMean ? at::mean(loss) : at::sum(loss);
}

// binary_cross_entropy(self, target, weight, reduction)
Lowering bce(const CutCall& c) {
  auto reduction = reduction_of(c.call);
  if (reduction == kNone) return {};
  return [reduction](Stack& stack) {
    auto weight = optional_tensor(stack[2]);
    auto loss = at::binary_cross_entropy(stack[0].toTensor(), stack[1].toTensor(), weight, kNone);
    stack = {reduced(loss, reduction)};
  };
}

// binary_cross_entropy_backward(grad, self, target, weight, reduction)
Lowering bce_backward(const CutCall& c) {
  if (reduction_of(c.call) != kMean) return {};
  return [count = static_cast<double>(c.input(1).numel())](Stack& stack) {
    auto grad = at::div(stack[0].toTensor(), count);
    auto self = stack[1].toTensor(), target = stack[2].toTensor();
    stack = {at::binary_cross_entropy_backward(grad, self, target, optional_tensor(stack[3]), kSum)};
  };
}

// binary_cross_entropy_with_logits(self, target, weight, pos_weight, reduction)
void bce_with_logits(Stack& stack) {
  auto x = stack[0].toTensor(), target = stack[1].toTensor();
  TORCH_CHECK_VALUE(target.sizes() == x.sizes(), "Target size (", target.sizes(), ") must be the same as input size (",
                    x.sizes(), ")");
  auto weight = optional_tensor(stack[2]), pos_weight = optional_tensor(stack[3]);
  x = settle(x), target = settle(target);
  // -log(sigmoid(x)), without overflow on either side
  auto penalty = at::add(at::log1p(at::exp(at::neg(at::abs(x)))), at::relu(at::neg(x)));
  if (pos_weight.defined()) penalty = at::mul(penalty, at::add(at::mul(at::sub(pos_weight, 1), target), 1));
  auto loss = at::add(at::mul(at::rsub(target, 1), x), penalty);
  if (weight.defined()) loss = at::mul(loss, weight);
  stack = {reduced(loss, stack[4].toInt())};
}

// soft_margin_loss(self, target, reduction)
void soft_margin(Stack& stack) {
  auto loss =
      at::log1p(at::exp(at::mul(at::neg(stack[0].toTensor()), stack[1].toTensor())));  // which decides the strides
  stack = {reduced(loss, stack[2].toInt())};
}

// soft_margin_loss_backward(grad, self, target, reduction)
void soft_margin_backward(Stack& stack) {
  auto grad = stack[0].toTensor(), self = stack[1].toTensor(), target = stack[2].toTensor();
  auto power = at::exp(at::mul(at::neg(target), self));
  auto slope = at::div(at::mul(at::neg(target), power), at::add(power, 1));
  if (stack[3].toInt() == kMean) grad = at::div(grad, static_cast<double>(self.numel()));
  stack = {at::mul(grad, slope)};
}

}  // namespace

void add_binary_cross_entropy(RuleTable& t) {
  t.add("aten::binary_cross_entropy", only_elementwise({kNone}).refusing(std::vector<size_t>{0}));
  t.lower("aten::binary_cross_entropy", bce);
  t.add("aten::binary_cross_entropy_backward", only_elementwise({kNone, kSum}));
  t.lower("aten::binary_cross_entropy_backward", bce_backward);
  t.always("aten::binary_cross_entropy_with_logits", bce_with_logits);
  t.always("aten::soft_margin_loss", soft_margin);
  t.always("aten::soft_margin_loss_backward", soft_margin_backward);
}

}  // namespace intarsia
