// rrelu: random slopes in training; otherwise it is a leaky relu.

#include <ATen/ATen.h>

#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// rrelu_with_noise(self, noise, lower, upper, training, generator) draws nothing outside of training.
Lowering rrelu(const CutCall& c) {
  if (c.call.bool_arg("training", false)) return {};
  return [](Stack& stack) {
    auto slope = (stack[2].toScalar().toDouble() + stack[3].toScalar().toDouble()) / 2;
    stack = {at::leaky_relu(stack[0].toTensor(), slope)};
  };
}

}  // namespace

void add_rrelu(RuleTable& t) { t.lower("aten::rrelu_with_noise", rrelu); }

}  // namespace intarsia
