// Means, variances and norms. Over sharded dims, sums of the shards are sent, never the values.

#include "intarsia/ops/reductions/statistics.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "intarsia/ops/along/layouts.h"
#include "intarsia/ops/along/recut.h"
#include "intarsia/ops/along/settle_together.h"
#include "intarsia/ops/reductions/waiting_norms.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

// A mean over dims that are not sharded is the plain op's on each rank, and linear. Over sharded ones it is computed
// from a sum (mean_along), or, if shards are equal, it may stay a pending average of their means.
Rule mean_by_rank() {
  auto rule = reduce(ReduceOp::avg, {ReduceOp::sum, ReduceOp::avg});
  rule.family = "reduce sum";  // listed with what it is composed of
  rule.legal = means_weigh_the_same;
  return rule;
}

// A reduction over `dim` that no sum of shards gives: the kept dims may be sharded.
Rule per_line() {
  auto make = [](const OpCall& call) {
    auto ndim = call.inputs[0].dim();
    auto reduced = call.dims_arg("dim", ndim);
    bool keep = call.bool_arg("keepdim", false);
    Rows rows;
    int64_t kept_before = 0;
    for (int64_t d = 0; d < ndim; ++d) {
      if (std::find(reduced.begin(), reduced.end(), d) != reduced.end()) continue;
      rows.push_back({{S(d)}, Placements(call.outputs.size(), S(keep ? d : kept_before))});
      ++kept_before;
    }
    return rows;
  };
  return rows("statistics", make).with_shapes(reduce(ReduceOp::sum, {}).form.shapes);
}

// The variance is real, the mean has the input's dtype.
std::vector<c10::ScalarType> variance_dtypes(const OpCall& call) {
  auto dtype = call.inputs[0].dtype;
  std::vector<c10::ScalarType> dtypes = {c10::toRealValueType(dtype), dtype};
  dtypes.resize(call.schema.returns().size());
  return dtypes;
}

// Whether values of a dtype have a mean.
bool has_fractions(at::ScalarType type) { return at::isFloatingType(type) || at::isComplexType(type); }

// mean(self, dtype), mean(self, dim, keepdim, dtype)
Lowering mean_along(const CutCall& c) {
  auto dims = c.call.dims_arg("dim", c.input(0).dim());
  auto type = dtype_of(c.call.arg("dtype")).value_or(c.input(0).dtype);
  if (!c.cuts(0, dims) || !has_fractions(type)) return {};
  bool keep = c.call.bool_arg("keepdim", false);
  return [=](Stack& stack) { stack = {mean_over(stack[0].toTensor(), dims, keep, type).to(type)}; };
}

// The mean first, then the squares of the deviations. This is exact for shards of any size, where sums of squares would
// cancel.
void variance(Stack& stack, const std::vector<int64_t>& dims, bool root, bool with_mean) {
  auto self = stack[0].toTensor();
  auto correction = stack[2].isNone() ? 1.0 : stack[2].toScalar().toDouble();
  bool keep = stack[3].toBool();
  auto type = self.scalar_type();
  auto x = settle(self).to(sum_type(type));
  auto mean = settle(mean_over(x, dims, true));
  auto centered = at::abs(at::sub(x, mean));
  auto squares = at::sum(at::mul(centered, centered), dims, keep);
  auto result = at::div(squares, std::max(extent(x, dims) - correction, 0.0));
  if (root) result = at::sqrt(result);
  stack = {result.to(at::toRealValueType(type))};
  if (with_mean) stack.emplace_back((keep ? mean : at::squeeze(mean, dims)).to(type));
}

// var(self, dim, correction, keepdim)
Planner variance_along(bool root, bool with_mean) {
  return [=](const CutCall& c) -> Lowering {
    auto dims = c.call.dims_arg("dim", c.input(0).dim());
    if (!c.cuts(0, dims) || !has_fractions(c.input(0).dtype)) return {};
    return [=](Stack& stack) { variance(stack, dims, root, with_mean); };
  };
}

// logsumexp(self, dims, keepdim): as in a softmax, only the maximum and the sum of each line are sent.
Lowering logsumexp_along(const CutCall& c) {
  auto& self = c.input(0);
  auto dims = c.call.dims_arg("dim", self.dim());
  bool keep = c.call.bool_arg("keepdim", false);
  if (self.numel() == 0 || !c.cuts(0, dims)) return {};
  return [=](Stack& stack) {
    auto self = stack[0].toTensor();
    auto type =
        has_fractions(self.scalar_type()) ? self.scalar_type() : at::typeMetaToScalarType(at::get_default_dtype());
    auto x = settle(self).to(sum_type(type));
    auto top = settle(at::amax(x.is_complex() ? at::real(x) : x, dims, true));
    top = at::masked_fill(top, at::isinf(top), 0);  // infinity minus infinity would be NaN
    auto sum = at::sum(at::exp(at::sub(x, top)), dims, keep);
    if (!keep) top = at::squeeze(top, dims);
    stack = {at::add(at::log(sum), top).to(type)};
  };
}

// --- norms of vectors; those of all elements of a tensor are in total_norms.cpp

at::Tensor norm_of(const at::Tensor& lengths, double ord, const std::vector<int64_t>& dims, bool keep) {
  if (std::isinf(ord)) return ord > 0 ? at::amax(lengths, dims, keep) : at::amin(lengths, dims, keep);
  if (ord == 0) return at::sum(at::ne(lengths, 0), dims, keep, lengths.scalar_type());
  if (ord == 1) return at::sum(lengths, dims, keep);
  if (ord == 2) return at::sqrt(at::sum(at::mul(lengths, lengths), dims, keep));
  return at::pow(at::sum(at::pow(lengths, ord), dims, keep), 1 / ord);
}

// linalg_vector_norm(self, ord, dim, keepdim, dtype)
Lowering vector_norm_along(const CutCall& c) {
  auto& self = c.input(0);
  auto dims = c.call.dims_arg("dim", self.dim());
  auto type = dtype_of(c.call.arg("dtype")).value_or(self.dtype);
  bool keep = c.call.bool_arg("keepdim", false);
  bool total = !keep && static_cast<int64_t>(dims.size()) == self.dim() && at::isFloatingType(type);
  bool cut = c.cuts(0, dims);
  bool sums = total && c.has_partial(0) && settle_by_sums(*c.now[0]);
  if (!(cut || sums) || self.numel() == 0 || !has_fractions(type)) return {};
  return [=](Stack& stack) {
    auto ord = stack[1].toScalar().toDouble();
    auto x = stack[0].toTensor();
    if (total && norm_waits(layout_of(x), x.sizes(), ord, type)) return void(stack = {waiting_norm(x, ord, type)});
    x = brought_to(x, layout_of(x).with(settled(placements_of(x))));  // this remembers the reduced value
    if (!cut) return void(stack = {at::linalg_vector_norm(x, ord, at::IntArrayRef(dims), keep, type)});
    auto lengths = at::abs(x.to(sum_type(type)));
    stack = {norm_of(lengths, ord, dims, keep).to(at::toRealValueType(type))};
  };
}

// The pending reduction that a norm over sharded dims leaves while the ranks have only looked at their own parts.
std::optional<Placement> pending_norm(double ord) {
  if (std::isinf(ord)) return ord > 0 ? P_max : P_min;
  if (ord == 0) return P_sum;
  return std::isfinite(ord) && ord > 0 ? std::optional<Placement>(NormPartial(ord)) : std::nullopt;
}

// A norm is settled at once, as most of its uses need that; pending ones are for a guide: PyTorch's DTensor leaves
// norms pending.
Rule vector_norm() {
  auto rule = per_line();
  rule.rows = [lines = rule.rows](const OpCall& call) {
    auto rows = lines(call);
    auto pending = pending_norm(call.arg("ord").toScalar().toDouble());
    if (!pending) return rows;
    for (auto dim : call.dims_arg("dim", call.inputs[0].dim()))
      rows.push_back({{S(dim)}, {*pending}, /*if_advised=*/true});
    return rows;
  };
  // A rank that holds nothing has no largest element.
  rule.legal = [](const OpCall& call, const Layout& in, const Layout& out) {
    auto infinite = std::isinf(call.arg("ord").toScalar().toDouble());
    return !infinite || !out.has_partial() || means_weigh_the_same(call, in, out);
  };
  return rule;
}

// The older name: norm(self, ord, dim, keepdim) or norm(self, ord, dim, keepdim, dtype)
void norm_by_vector_norm(Stack& stack) {
  auto dims = stack[2].toIntVector();
  auto dtype = stack.size() > 4 ? dtype_of(stack[4]) : std::nullopt;
  stack = {
      at::linalg_vector_norm(stack[0].toTensor(), ord_of(stack[1]), at::IntArrayRef(dims), stack[3].toBool(), dtype)};
}

// dist(self, other, p)
void dist_by_vector_norm(Stack& stack) {
  stack = {at::linalg_vector_norm(at::sub(stack[0].toTensor(), stack[1].toTensor()), stack[2].toScalar())};
}

}  // namespace

bool means_weigh_the_same(const OpCall& call, const Layout& in, const Layout& out) {
  std::vector<int64_t> pieces(call.inputs[0].dim(), 1);
  for (int64_t axis = 0; axis < in.mesh().ndim(); ++axis) {
    auto dim = cut_dim(in.placements()[axis]);
    if (dim < 0 || !is_partial(out.placements()[axis])) continue;
    pieces[dim] *= in.mesh().size(axis) * cut_blocks(in.placements()[axis]);
  }
  for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
    if (pieces[d] > 1 && (call.inputs[0].sizes[d] == 0 || call.inputs[0].sizes[d] % pieces[d] != 0)) return false;
  }
  return true;
}

at::Tensor mean_over(const at::Tensor& x, at::IntArrayRef dims, bool keep, std::optional<at::ScalarType> type) {
  return at::sum(x, dims, keep, sum_type(type.value_or(x.scalar_type()))).div_(extent(x, dims));
}

void add_statistics(RuleTable& t) {
  t.add({"aten::mean", "aten::mean.dim"}, mean_by_rank());
  t.lower("aten::mean", mean_along);
  t.lower("aten::mean.dim", mean_along);

  t.add({"aten::var.correction", "aten::std.correction", "aten::var_mean.correction", "aten::std_mean.correction"},
        per_line().with_dtypes(variance_dtypes));
  t.lower("aten::var.correction", variance_along(false, false));
  t.lower("aten::std.correction", variance_along(true, false));
  t.lower("aten::var_mean.correction", variance_along(false, true));
  t.lower("aten::std_mean.correction", variance_along(true, true));

  t.add("aten::logsumexp", per_line());
  t.add("aten::linalg_vector_norm", vector_norm());
  t.traits("aten::linalg_vector_norm").steered_by = {"ord"};
  t.lower("aten::logsumexp", logsumexp_along);
  t.lower("aten::linalg_vector_norm", vector_norm_along);
  t.add("aten::linalg__powsum", reduce(ReduceOp::sum, {}));
  t.always("aten::norm.ScalarOpt_dim", norm_by_vector_norm);
  t.always("aten::norm.ScalarOpt_dim_dtype", norm_by_vector_norm);
  t.always("aten::dist", dist_by_vector_norm);
}

}  // namespace intarsia
