// Losses as LibTorch defines them, written in pointwise ops and sums.

#include <ATen/ATen.h>

#include "intarsia/ops/layouts.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

using Stack = std::vector<c10::IValue>;
constexpr int64_t kNone = at::Reduction::None, kMean = at::Reduction::Mean, kSum = at::Reduction::Sum;

at::Tensor reduced(const at::Tensor& loss, int64_t reduction) {
  return reduction == kNone ? loss : reduction == kMean ? at::mean(loss) : at::sum(loss);
}

// binary_cross_entropy(self, target, weight, reduction)
bool bce(Stack& stack) {
  auto reduction = stack[3].toInt();
  if (reduction == kNone) return false;
  auto weight = optional_tensor(stack[2]);
  auto loss = at::binary_cross_entropy(stack[0].toTensor(), stack[1].toTensor(), weight, kNone);
  stack = {reduced(loss, reduction)};
  return true;
}

// binary_cross_entropy_backward(grad, self, target, weight, reduction)
bool bce_backward(Stack& stack) {
  if (stack[4].toInt() != kMean) return false;
  auto self = stack[1].toTensor();
  auto grad = at::div(stack[0].toTensor(), static_cast<double>(self.numel()));
  stack = {at::binary_cross_entropy_backward(grad, self, stack[2].toTensor(), optional_tensor(stack[3]), kSum)};
  return true;
}

// binary_cross_entropy_with_logits(self, target, weight, pos_weight, reduction)
bool bce_with_logits(Stack& stack) {
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
  return true;
}

// soft_margin_loss(self, target, reduction)
bool soft_margin(Stack& stack) {
  auto loss = at::log1p(at::exp(at::mul(at::neg(stack[1].toTensor()), stack[0].toTensor())));
  stack = {reduced(loss, stack[2].toInt())};
  return true;
}

// soft_margin_loss_backward(grad, self, target, reduction)
bool soft_margin_backward(Stack& stack) {
  auto grad = stack[0].toTensor(), self = stack[1].toTensor(), target = stack[2].toTensor();
  auto power = at::exp(at::mul(at::neg(target), self));
  auto slope = at::div(at::mul(at::neg(target), power), at::add(power, 1));
  if (stack[3].toInt() == kMean) grad = at::div(grad, static_cast<double>(self.numel()));
  stack = {at::mul(grad, slope)};
  return true;
}

// rrelu_with_noise(self, noise, lower, upper, training, generator) draws nothing outside of training.
bool rrelu(Stack& stack) {
  if (stack[4].toBool()) return false;
  auto slope = (stack[2].toScalar().toDouble() + stack[3].toScalar().toDouble()) / 2;
  stack = {at::leaky_relu(stack[0].toTensor(), slope)};
  return true;
}

// Zeros in place of some terms leave a sum a sum. Composite losses do this to pending sums in place.
bool fill_with_zero(Stack& stack) {
  auto self = stack[0].toTensor();
  if (!is_dtensor(self) || !layout_of(self).has_partial() || stack[2].toScalar().toDouble() != 0) return false;
  for (auto& placement : placements_of(self)) {
    if (is_partial(placement) && placement != Placement(Partial())) return false;
  }
  self.copy_(at::where(stack[1].toTensor(), at::zeros_like(self), self));
  stack = {self};
  return true;
}

}  // namespace

void add_loss_ops(RuleTable& t) {
  t.decompose("aten::binary_cross_entropy", bce);
  t.decompose("aten::binary_cross_entropy_backward", bce_backward);
  t.decompose("aten::binary_cross_entropy_with_logits", bce_with_logits);
  t.decompose("aten::soft_margin_loss", soft_margin);
  t.decompose("aten::soft_margin_loss_backward", soft_margin_backward);
  t.decompose("aten::masked_fill_.Scalar", fill_with_zero);
  t.decompose("aten::rrelu_with_noise", rrelu);
}

}  // namespace intarsia
