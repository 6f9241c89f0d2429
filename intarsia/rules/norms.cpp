// Normalizations and statistics where the dims they run over are not cut. Where they are, intarsia/ops takes over.

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;

// The result has the type of the input; what goes with the weight (statistics, its gradient) that of the last tensor.
std::vector<c10::ScalarType> norm_dtypes(const OpCall& call) {
  auto& last = *std::find_if(call.inputs.rbegin(), call.inputs.rend(), [](auto& form) { return form.defined; });
  std::vector<c10::ScalarType> dtypes = {call.inputs[0].dtype, last.dtype, last.dtype};
  if (call.arg_index("output_mask") < 0) return dtypes;
  auto asked = call.arg("output_mask").toBoolList();
  for (size_t i = 0; i < dtypes.size(); ++i) {
    if (!asked[i]) dtypes[i] = c10::ScalarType::Undefined;
  }
  return dtypes;
}

// layer_norm(input, shape, weight, bias): every leading position is on its own.
Rule layer_norm() {
  Rule rule = rows("norm", [](const OpCall& call) {
    Rows rows;
    auto leading = call.inputs[0].dim() - static_cast<int64_t>(call.arg("normalized_shape").toIntVector().size());
    for (int64_t d = 0; d < leading; ++d) rows.push_back({{S(d), R, R}, {S(d), S(d), S(d)}});
    return rows;
  });
  rule.shapes = [](const OpCall& call) -> Shapes {
    auto whole = sizes_of(call.inputs[0]), statistics = whole;
    auto normed = std::min(call.arg("normalized_shape").toIntVector().size(), whole.size());
    std::fill(statistics.end() - static_cast<int64_t>(normed), statistics.end(), 1);
    return {whole, statistics, statistics};
  };
  rule.dtypes = norm_dtypes;
  return rule;
}

// backward(grad, input, shape, mean, rstd, weight, bias): gradients of weight and bias are sums over positions.
Rule layer_norm_backward() {
  Rule rule = rows("norm", [](const OpCall& call) {
    Rows rows;
    auto leading = call.inputs[1].dim() - static_cast<int64_t>(call.arg("normalized_shape").toIntVector().size());
    for (int64_t d = 0; d < leading; ++d) {
      rows.push_back({{S(d), S(d), S(d), S(d), R, R}, {S(d), P_sum, P_sum}});
    }
    return rows;
  });
  rule.shapes = [](const OpCall& call) -> Shapes {
    auto shape = call.arg("normalized_shape").toIntVector();
    return {sizes_of(call.inputs[1]), shape, shape};
  };
  rule.dtypes = norm_dtypes;
  return rule;
}

// A reduction over `dim` that no sum of shards gives: the kept dims may be cut.
Rule per_line() {
  Rule rule = rows("statistics", [](const OpCall& call) {
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
  });
  rule.shapes = reduce(ReduceOp::sum, {}).shapes;
  return rule;
}

// The variance is real, the mean is like the input.
std::vector<c10::ScalarType> variance_dtypes(const OpCall& call) {
  auto dtype = call.inputs[0].dtype;
  std::vector<c10::ScalarType> dtypes = {c10::toRealValueType(dtype), dtype};
  dtypes.resize(call.schema.returns().size());
  return dtypes;
}

}  // namespace

void add_norm_rules(RuleTable& t) {
  t["aten::native_layer_norm"] = layer_norm();
  t["aten::native_layer_norm_backward"] = layer_norm_backward();
  auto& group_norm = t["aten::native_group_norm"];
  group_norm = rows("norm", [](const OpCall&) {
    return Rows{{{S(0), R, R}, {S(0), S(0), S(0)}}};
  }).with_size_args({"N"});
  group_norm.shapes = [](const OpCall& call) -> Shapes {
    std::vector<int64_t> statistics = {call.inputs[0].sizes[0], call.int_arg("group", 1)};
    return {sizes_of(call.inputs[0]), statistics, statistics};
  };
  group_norm.dtypes = norm_dtypes;
  auto& group_norm_backward = t["aten::native_group_norm_backward"];
  group_norm_backward = rows("norm", [](const OpCall&) {
    return Rows{{{S(0), S(0), S(0), S(0), R}, {S(0), P_sum, P_sum}}};
  }).with_size_args({"N"});
  group_norm_backward.shapes = [](const OpCall& call) -> Shapes {
    std::vector<int64_t> channels = {call.inputs[1].sizes[1]};
    return {sizes_of(call.inputs[1]), channels, channels};
  };
  group_norm_backward.dtypes = norm_dtypes;
  for (auto op : {"aten::linalg_vector_norm", "aten::logsumexp"}) t[op] = per_line();
  for (auto op : {"aten::var.correction", "aten::std.correction", "aten::var_mean.correction",
                  "aten::std_mean.correction"}) {
    t[op] = per_line();
    t[op].dtypes = variance_dtypes;
  }
}

}  // namespace intarsia
