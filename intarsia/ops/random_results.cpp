// Random ops that return new tensors, made of those that fill tensors in place.

#include <ATen/ATen.h>

#include "intarsia/rules/table.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

std::optional<at::Generator> generator_in(const c10::IValue& value) { return value.toOptional<at::Generator>(); }

// What is pending is settled by the rows.
bool has_values(const CutCall& c, size_t i) { return c.is_distributed(i) && !c.has_partial(i); }

// bernoulli(self, generator), bernoulli.p(self, p, generator)
Way bernoulli(const CutCall& c) {
  if (!has_values(c, 0)) return {};
  return [](Stack& stack) {
    auto self = stack[0].toTensor();
    auto result = at::empty_like(self, at::MemoryFormat::Contiguous);
    auto generator = generator_in(stack.back());
    stack = {stack.size() == 3 ? result.bernoulli_(stack[1].toDouble(), generator) : result.bernoulli_(self, generator)};
  };
}

// native_dropout(input, p, train)
Way native_dropout(const CutCall& c) {
  if (!has_values(c, 0) || !c.call.bool_arg("train", true) || c.input(0).numel() == 0) return {};
  return [](Stack& stack) {
    auto input = stack[0].toTensor();
    auto kept = 1 - stack[1].toDouble();
    auto mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(kept);
    stack = {input.mul(mask).mul_(kept == 0 ? 0. : 1 / kept), mask};
  };
}

void check_deviation(const at::Tensor& std) {
  TORCH_CHECK(!std.is_complex(), "normal expects standard deviation to be non-complex");
  TORCH_CHECK(std.numel() == 0 || std.is_meta() || std.min().ge(0).item<bool>(), "normal expects all elements of std >= 0.0");
}

// normal(mean, std, generator): one of them a tensor, or both, of one shape.
Way normal(const CutCall& c) {
  if (!has_values(c, 0)) return {};
  bool both = c.call.inputs.size() == 2;
  if (both && (!has_values(c, 1) || !c.on_one_mesh() || c.input(0).sizes != c.input(1).sizes)) return {};
  return [](Stack& stack) {
    auto mean = stack[0], std = stack[1];
    auto like = (mean.isTensor() ? mean : std).toTensor();
    if (std.isTensor()) check_deviation(std.toTensor());
    auto result = at::empty_like(like, at::MemoryFormat::Contiguous);
    result.normal_(0, std.isTensor() ? 1 : std.toDouble(), generator_in(stack[2]));
    if (std.isTensor()) result.mul_(std.toTensor());
    // A number is rounded to the dtype before it is added.
    stack = {result.add_(mean.isTensor() ? mean.toTensor() : at::full({}, mean.toScalar(), std.toTensor().scalar_type()))};
  };
}

void check_probabilities(const at::Tensor& p) {
  bool valid = at::logical_and(p.max() < INFINITY, p.min() >= 0).item<bool>();
  TORCH_CHECK(valid, "probability tensor contains either `inf`, `nan` or element < 0");
  bool none = (p.sum(-1) == 0).any().item<bool>();
  TORCH_CHECK(!none, "invalid multinomial distribution (sum of probabilities <= 0)");
}

// multinomial(self, num_samples, replacement, generator): a single sample is where p / q is largest, q being exponential.
Way multinomial(const CutCall& c) {
  auto& self = c.input(0);
  bool has_one = c.call.int_arg("num_samples", 0) == 1 && (self.dim() == 1 || self.dim() == 2) && self.numel() > 0;
  if (!has_values(c, 0) || !has_one || !c10::isFloatingType(self.dtype)) return {};
  return [](Stack& stack) {
    auto self = stack[0].toTensor();
    if (!self.is_meta()) check_probabilities(self);
    auto q = at::empty_like(self).exponential_(1, generator_in(stack[3]));
    stack = {at::argmax(self / q, -1, true)};
  };
}

}  // namespace

void add_random_results(RuleTable& t) {
  t.along("aten::bernoulli", bernoulli);
  t.along("aten::bernoulli.p", bernoulli);
  t.along("aten::native_dropout", native_dropout);
  for (auto* op : {"aten::normal.Tensor_float", "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor"}) t.along(op, normal);
  t.along("aten::multinomial", multinomial);
}

}  // namespace intarsia
