#include <limits>

#include <ATen/ATen.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// max and min of an empty shard are the neutral element, where the plain op would refuse.
at::Tensor neutral(const TensorForm& form, c10::ArrayRef<int64_t> sizes, bool lowest, const at::Tensor& like) {
  auto options = like.options().dtype(form.dtype);
  if (c10::multiply_integers(sizes) == 0) return at::empty(sizes, options);
  if (form.dtype == at::kBool) return at::full(sizes, !lowest, options);
  if (at::isFloatingType(form.dtype)) {
    auto infinity = std::numeric_limits<double>::infinity();
    return at::full(sizes, lowest ? -infinity : infinity, options);
  }
  auto limit = AT_DISPATCH_INTEGRAL_TYPES(form.dtype, "neutral", [&] {
    return static_cast<int64_t>(lowest ? std::numeric_limits<scalar_t>::lowest()
                                       : std::numeric_limits<scalar_t>::max());
  });
  return at::full(sizes, limit, options);
}

Rule extremum(ReduceOp op) {
  return reduce(op, {op}).with_local([op](LocalCall& local) {
    auto self = local.stack[0].toTensor();
    auto shape = local_shape(*local.out[0], local.call.outputs[0].sizes, local.slot.coordinate);
    if (self.numel() == 0) {
      local.stack = {neutral(local.call.outputs[0], shape, op == ReduceOp::max, self)};
      return;
    }
    auto dims = local.call.dims_arg("dim", self.dim());
    bool keep = local.call.bool_arg("keepdim", false);
    auto result = op == ReduceOp::max ? at::amax(self, dims, keep) : at::amin(self, dims, keep);
    local.stack = {std::move(result)};
  });
}

// A mean over whole dims is the plain op's on each rank, and linear. Over cut ones see ops/statistics.cpp.
Rule mean_over_whole_dims() {
  auto rule = reduce(ReduceOp::sum, {ReduceOp::sum, ReduceOp::avg});
  rule.rows = [sums = rule.rows](const OpCall& call) {
    auto rows = sums(call);
    std::erase_if(rows, [](auto& row) { return !is_partial(row.in[0]) && is_partial(row.out[0]); });
    return rows;
  };
  return rule;
}

}  // namespace

void add_reduction_rules(RuleTable& t) {
  t["aten::sum"] = t["aten::sum.dim_IntList"] = reduce(ReduceOp::sum, {ReduceOp::sum, ReduceOp::avg});
  t["aten::nansum"] = reduce(ReduceOp::sum, {});
  t["aten::prod"] = t["aten::prod.dim_int"] = reduce(ReduceOp::product, {ReduceOp::product});
  t["aten::amax"] = t["aten::max"] = extremum(ReduceOp::max);
  t["aten::amin"] = t["aten::min"] = extremum(ReduceOp::min);
  t["aten::all"] = t["aten::all.dim"] = t["aten::all.dims"] = reduce(ReduceOp::band, {});
  t["aten::any"] = t["aten::any.dim"] = t["aten::any.dims"] = reduce(ReduceOp::bor, {});
  t["aten::_is_all_true"] = reduce(ReduceOp::band, {});
  t["aten::_is_any_true"] = reduce(ReduceOp::bor, {});
  t["aten::count_nonzero"] = t["aten::count_nonzero.dim_IntList"] = reduce(ReduceOp::sum, {});

  t["aten::mean"] = t["aten::mean.dim"] = mean_over_whole_dims();
}

}  // namespace intarsia
