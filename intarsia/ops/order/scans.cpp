// Running sums, products and extremes. Along a sharded dim, every rank scans its own part, and only totals are sent.

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "intarsia/ops/along/layouts.h"
#include "intarsia/ops/along/recut.h"
#include "intarsia/ops/order/cut_line.h"
#include "intarsia/ops/order/dim_rules.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Combines what is before a rank with what it has.
using Combine = at::Tensor (*)(const at::Tensor& before, const at::Tensor& own);
at::Tensor add_up(const at::Tensor& a, const at::Tensor& b) { return a + b; }
at::Tensor multiply(const at::Tensor& a, const at::Tensor& b) { return a * b; }
at::Tensor add_logs(const at::Tensor& a, const at::Tensor& b) { return at::logaddexp(a, b); }

// The last position of a rank's scan; empty if it holds nothing.
at::Tensor last_place(const at::Tensor& scanned, const CutLine& line, size_t slot) {
  auto extent = line.extent(slot);
  return scanned.narrow(line.dim, std::max<int64_t>(extent - 1, 0), std::min<int64_t>(extent, 1));
}

// Gathers the last positions of all ranks, and combines what is before this rank.
template <class Scan>
at::Tensor scan(const CutLine& line, const at::Tensor& self, Scan local_scan, Combine combine) {
  Shards scans, lasts;
  auto& shards = body_of(self).shards();
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    scans.push_back(local_scan(shards[slot]));
    lasts.push_back(last_place(scans[slot], line, slot));
  }
  auto totals = gather_along(*line.axis, lasts, line.dim, at_most(line.extents, 1));
  auto dtype = scans.empty() ? self.scalar_type() : scans[0].scalar_type();
  for (size_t slot = 0; slot < scans.size(); ++slot) {
    at::Tensor before;
    int64_t place = 0;
    for (int64_t member = 0; member < line.axis->position(slot); ++member) {
      if (line.extents[member] == 0) continue;
      auto total = totals[slot].narrow(line.dim, place++, 1);
      before = before.defined() ? combine(before, total) : total;
    }
    if (before.defined() && line.extent(slot) > 0) scans[slot] = combine(before, scans[slot]);
  }
  return wrap_contiguous(std::move(scans), line.layout, line.sizes, dtype);
}

template <class Scan>
Lowering scanned_by(CutLinePtr line, Scan local_scan, Combine combine) {
  if (!line) return {};
  return [=](Stack& stack) { stack = {scan(*line, stack[0].toTensor(), local_scan, combine)}; };
}

Lowering cumsum_along(const CutCall& c) {
  auto dim = c.call.int_arg("dim", 0);
  auto local = [dim, dtype = dtype_of(c.call.arg("dtype"))](auto& x) { return at::cumsum(x, dim, dtype); };
  return scanned_by(cut_line(c, dim), local, add_up);
}

Lowering cumprod_along(const CutCall& c) {
  auto dim = c.call.int_arg("dim", 0);
  auto local = [dim, dtype = dtype_of(c.call.arg("dtype"))](auto& x) { return at::cumprod(x, dim, dtype); };
  return scanned_by(cut_line(c, dim), local, multiply);
}

Lowering logcumsumexp_along(const CutCall& c) {
  if (c10::isComplexType(c.input(0).dtype)) return {};
  auto dim = c.call.int_arg("dim", 0);
  return scanned_by(cut_line(c, dim), [dim](auto& x) { return at::logcumsumexp(x, dim); }, add_logs);
}

// cummax and cummin: a later position wins a tie, and a NaN stays.
struct RunningExtreme {
  CutLinePtr line;
  bool largest;

  std::tuple<at::Tensor, at::Tensor> scan(const at::Tensor& t) const {
    return largest ? at::cummax(t, line->dim) : at::cummin(t, line->dim);
  }
  void operator()(Stack& stack) const;
  void reach_back(at::Tensor& values, at::Tensor& indices, const at::Tensor& earlier,
                  const at::Tensor& earlier_indices) const;
};

// The same scan over the earlier ranks' results says which of them wins.
void RunningExtreme::reach_back(at::Tensor& values, at::Tensor& indices, const at::Tensor& earlier,
                                const at::Tensor& earlier_indices) const {
  auto dim = line->dim, last = earlier.size(dim) - 1;
  auto [scanned, which] = scan(earlier);
  auto before = scanned.narrow(dim, last, 1);
  auto before_index = earlier_indices.gather(dim, which.narrow(dim, last, 1));
  auto own = largest ? values.ge(before) : values.le(before);
  own = values.isnan().logical_or(own.logical_and(before.isnan().logical_not()));
  values = at::where(own, values, before);
  indices = at::where(own, indices, before_index);
}

void RunningExtreme::operator()(Stack& stack) const {
  auto self = stack[0].toTensor();
  Shards values, indices, last_values, last_indices;
  auto& shards = body_of(self).shards();
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    auto [value, index] = scan(shards[slot]);
    values.push_back(value);
    indices.push_back(index + line->begin(slot));
    last_values.push_back(last_place(values[slot], *line, slot));
    last_indices.push_back(last_place(indices[slot], *line, slot));
  }
  auto extents = at_most(line->extents, 1);
  auto all_values = gather_along(*line->axis, last_values, line->dim, extents);
  auto all_indices = gather_along(*line->axis, last_indices, line->dim, extents);
  for (size_t slot = 0; slot < values.size(); ++slot) {
    int64_t earlier = 0;
    for (int64_t member = 0; member < line->axis->position(slot); ++member) earlier += extents[member];
    if (earlier == 0 || line->extent(slot) == 0) continue;
    reach_back(values[slot], indices[slot], all_values[slot].narrow(line->dim, 0, earlier),
               all_indices[slot].narrow(line->dim, 0, earlier));
  }
  stack = {wrap_contiguous(std::move(values), line->layout, line->sizes, self.scalar_type()),
           wrap_contiguous(std::move(indices), line->layout, line->sizes, at::kLong)};
}

Lowering running_extreme_along(const CutCall& c, bool largest) {
  auto line = cut_line(c, c.call.int_arg("dim", 0));
  return line ? Lowering(RunningExtreme{line, largest}) : Lowering();
}

at::Tensor sum_from_behind(const at::Tensor& x, int64_t dim) {
  return at::flip(at::cumsum(at::flip(x, dim), dim), dim);
}

// LibTorch's formula writes into plain tensors; this one is an expression of distributed ones. The gradient of position
// i sums, over the products that contain it, the product without it. Before the first zero of a line, that is the
// product divided by x[i]; at the first zero it is the product with a one in its position; after it, zero.
at::Tensor cumprod_gradient(const at::Tensor& grad, const at::Tensor& self, int64_t dim) {
  if (self.dim() == 0 || self.size(dim) == 1) return grad;
  auto zero = at::eq(self, 0);
  auto zeros_so_far = at::cumsum(zero, dim);
  auto first = at::logical_and(zero, at::eq(zeros_so_far, 1));
  auto one = at::ones_like(self);
  auto before =
      at::div(sum_from_behind(at::mul(grad, at::cumprod(self, dim).conj()), dim), at::where(zero, one, self).conj());
  auto at_first = sum_from_behind(at::mul(grad, at::cumprod(at::where(first, one, self), dim).conj()), dim);
  auto nothing = at::zeros_like(before);
  return at::where(at::eq(zeros_so_far, 0), before, at::where(first, at_first, nothing));
}

struct Cumprod : torch::autograd::Function<Cumprod> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& self, int64_t dim,
                            std::optional<at::ScalarType> dtype) {
    ctx->save_for_backward({self});
    ctx->saved_data["dim"] = dim;
    at::AutoDispatchBelowADInplaceOrView guard;
    return at::cumprod(self, dim, dtype);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto self = ctx->get_saved_variables()[0];
    auto wide = self.to(grads[0].scalar_type());
    auto grad = cumprod_gradient(grads[0], wide, ctx->saved_data["dim"].toInt());
    return {grad.to(self.scalar_type()), {}, {}};
  }
};

at::Tensor cumprod(const at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype) {
  return Cumprod::apply(self, dim, dtype);
}

std::vector<std::vector<int64_t>> two_like_input(const OpCall& call) {
  return {sizes_of(call.inputs[0]), sizes_of(call.inputs[0])};
}

}  // namespace

void add_scans(RuleTable& t) {
  t.add("aten::cumsum", scan_rule({{{P_sum}, {P_sum}}, {{P_avg}, {P_avg}}}));  // linear
  t.lower("aten::cumsum", cumsum_along);
  t.add("aten::cumprod", scan_rule());
  t.lower("aten::cumprod", cumprod_along);
  t.gradient("aten::cumprod", cumprod);
  t.add({"aten::logcumsumexp", "aten::_logcumsumexp"}, scan_rule().like_input(0).contiguous());
  t.lower("aten::logcumsumexp", logcumsumexp_along);
  t.add({"aten::cummax", "aten::cummin"},
        scan_rule().with_shapes(two_like_input).with_dtypes(with_places).contiguous());
  t.lower("aten::cummax", [](const CutCall& c) { return running_extreme_along(c, true); });
  t.lower("aten::cummin", [](const CutCall& c) { return running_extreme_along(c, false); });
}

}  // namespace intarsia
