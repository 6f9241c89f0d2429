// Random ops that return new tensors, composed of those that fill tensors in place.

#include <ATen/ATen.h>

#include "intarsia/ops/order/cut_line.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

std::optional<at::Generator> generator_in(const c10::IValue& value) { return value.toOptional<at::Generator>(); }

// Whether the input has values: the rows settle what is pending.
bool has_values(const CutCall& c, size_t i) { return c.is_distributed(i) && !c.has_partial(i); }

// bernoulli(self, generator), bernoulli.p(self, p, generator)
Lowering bernoulli(const CutCall& c) {
  if (!has_values(c, 0)) return {};
  return [](Stack& stack) {
    auto self = stack[0].toTensor();
    auto result = at::empty_like(self, at::MemoryFormat::Contiguous);
    auto generator = generator_in(stack.back());
    stack = {stack.size() == 3 ? result.bernoulli_(stack[1].toDouble(), generator)
                               : result.bernoulli_(self, generator)};
  };
}

// native_dropout(input, p, train)
Lowering native_dropout(const CutCall& c) {
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
  TORCH_CHECK(std.numel() == 0 || std.is_meta() || std.min().ge(0).item<bool>(),
              "normal expects all elements of std >= 0.0");
}

// normal(mean, std, generator): one of them a tensor, or both, of one shape.
Lowering normal(const CutCall& c) {
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
    stack = {
        result.add_(mean.isTensor() ? mean.toTensor() : at::full({}, mean.toScalar(), std.toTensor().scalar_type()))};
  };
}

void check_probabilities(const at::Tensor& p) {
  bool valid = at::logical_and(p.max() < INFINITY, p.min() >= 0).item<bool>();
  TORCH_CHECK(valid, "probability tensor contains either `inf`, `nan` or element < 0");
  bool none = (p.sum(-1) == 0).any().item<bool>();
  TORCH_CHECK(!none, "invalid multinomial distribution (sum of probabilities <= 0)");
}

// The cumulative sums of each row divided by their total: added one after the other in the dtype itself, as in the
// plain op.
template <class Number>
at::Tensor running_shares(const at::Tensor& rows) {
  auto shares = rows.contiguous().clone();
  auto width = rows.size(-1);
  auto* begin = shares.mutable_data_ptr<Number>();
  for (auto* row = begin; row != begin + shares.numel(); row += width) {
    for (int64_t i = 1; i < width; ++i) row[i] += row[i - 1];
    auto total = row[width - 1];
    for (int64_t i = 0; i < width; ++i) row[i] /= total;
    row[width - 1] = 1;
  }
  return shares.to(at::kDouble);
}

// The first index of a row whose value reaches each of these numbers.
at::Tensor places_of(const at::Tensor& numbers, const at::Tensor& rows) {
  if (rows.is_meta()) return at::empty_like(numbers, at::kLong);
  auto shares =
      rows.scalar_type() == at::kDouble ? running_shares<double>(rows) : running_shares<float>(rows.to(at::kFloat));
  return at::searchsorted(shares, numbers);
}

void draw_with_replacement(Stack& stack, int64_t count) {
  auto self = stack[0].toTensor();
  auto sizes = self.sizes().vec();
  sizes.back() = count;
  auto numbers = empty(sizes, mesh_of(self), placements_of(self), at::kDouble).uniform_(0, 1, generator_in(stack[3]));
  Shards places;
  for (size_t slot = 0; slot < shards_of(self).size(); ++slot)
    places.push_back(places_of(shards_of(numbers)[slot], shards_of(self)[slot]));
  stack = {wrap_contiguous(std::move(places), &layout_of(self), sizes, at::kLong)};
}

// The indices where p / q is largest, q being exponential.
void draw_without_replacement(Stack& stack, int64_t count) {
  auto self = stack[0].toTensor();
  auto ratios = self / at::empty_like(self).exponential_(1, generator_in(stack[3]));
  stack = {count == 1 ? at::argmax(ratios, -1, true) : std::get<1>(at::topk(ratios, count))};
}

// multinomial(self, num_samples, replacement, generator)
Lowering multinomial(const CutCall& c) {
  auto& self = c.input(0);
  auto count = c.call.int_arg("num_samples", 0);
  bool has_rows = (self.dim() == 1 || self.dim() == 2) && self.numel() > 0 && c10::isFloatingType(self.dtype);
  if (!has_values(c, 0) || !has_rows || count < 1) return {};
  bool replaces = count > 1 && c.call.bool_arg("replacement", false);
  if (count > 1 && (c.cuts(0, self.dim() - 1) || (!replaces && count > self.sizes.back()))) return {};
  return [=](Stack& stack) {
    auto self = stack[0].toTensor();
    if (!self.is_meta()) check_probabilities(self);
    replaces ? draw_with_replacement(stack, count) : draw_without_replacement(stack, count);
  };
}

}  // namespace

void add_random_results(RuleTable& t) {
  t.lower("aten::bernoulli", bernoulli);
  t.lower("aten::bernoulli.p", bernoulli);
  t.lower("aten::native_dropout", native_dropout);
  for (auto* op : {"aten::normal.Tensor_float", "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor"})
    t.lower(op, normal);
  t.lower("aten::multinomial", multinomial);
  t.hands_on({"aten::dropout"});
}

}  // namespace intarsia
