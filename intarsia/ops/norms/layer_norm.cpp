// Layer norm. If the normalized dims are sharded, the values stay where they are, and only sums of them are sent.

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/ops/along/layouts.h"
#include "intarsia/ops/norms/parts.h"
#include "intarsia/ops/reductions/statistics.h"
#include "intarsia/propagate/forms.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;

// The first of the normalized dims; negative if there are more of them than the input has dims.
int64_t first_normalized(const OpCall& call, size_t input) {
  return call.inputs[input].dim() - static_cast<int64_t>(call.arg("normalized_shape").toIntVector().size());
}

// Whether the normalized dims are the last ones of the input; if not, the plain op raises its error.
bool fits(const OpCall& call, size_t input) {
  auto first = first_normalized(call, input);
  auto shape = call.arg("normalized_shape").toIntVector();
  return first >= 0 && at::IntArrayRef(call.inputs[input].sizes).slice(first) == at::IntArrayRef(shape);
}

// layer_norm(input, shape, weight, bias): leading positions are independent.
Rule layer_norm_rule() {
  auto make = [](const OpCall& call) {
    Rows rows;
    auto leading = first_normalized(call, 0);
    for (int64_t d = 0; d < leading; ++d) rows.push_back({{S(d), R, R}, {S(d), S(d), S(d)}});
    return rows;
  };
  auto shapes = [](const OpCall& call) -> Shapes {
    auto whole = sizes_of(call.inputs[0]), statistics = whole;
    auto normed = std::min(call.arg("normalized_shape").toIntVector().size(), whole.size());
    std::fill(statistics.end() - static_cast<int64_t>(normed), statistics.end(), 1);
    return {whole, statistics, statistics};
  };
  // Without data, LibTorch gets the shape of the statistics of an empty tensor wrong.
  auto of_nothing = [shapes](const OpCall& call) -> std::vector<TensorForm> {
    if (call.inputs[0].numel() > 0 || !fits(call, 0)) return {};
    auto all = shapes(call);
    auto dtypes = norm_dtypes(call);
    return {dense_form(all[0], dtypes[0]), dense_form(all[1], dtypes[1]), dense_form(all[2], dtypes[2])};
  };
  return rows("norm", make).with_shapes(shapes).with_dtypes(norm_dtypes).with_forms(of_nothing);
}

// backward(grad, input, shape, mean, rstd, weight, bias): gradients of weight and bias are sums over positions.
Rule layer_norm_backward_rule() {
  auto make = [](const OpCall& call) {
    Rows rows;
    auto leading = first_normalized(call, 1);
    for (int64_t d = 0; d < leading; ++d) {
      rows.push_back({{S(d), S(d), S(d), S(d), R, R}, {S(d), P_sum, P_sum}});
    }
    return rows;
  };
  auto shapes = [](const OpCall& call) -> Shapes {
    auto shape = call.arg("normalized_shape").toIntVector();
    return {sizes_of(call.inputs[1]), shape, shape};
  };
  return rows("norm", make).with_shapes(shapes).with_dtypes(norm_dtypes);
}

void normalize(Stack& stack, const std::vector<int64_t>& dims) {
  auto input = stack[0].toTensor(), weight = optional_tensor(stack[2]), bias = optional_tensor(stack[3]);
  auto x = settle(input).to(sum_type(input.scalar_type())).contiguous();  // so that the result is
  auto mean = settle(mean_over(x, dims, true));
  auto centered = at::sub(x, mean);
  auto variance = settle(mean_over(at::mul(centered, centered), dims, true));
  auto rstd = at::rsqrt(at::add(variance, stack[4].toDouble()));
  auto out = scaled_and_moved(at::mul(centered, rstd), weight, bias);
  auto statistics = weight_type(weight, input);
  stack = {out.to(input.scalar_type()), mean.to(statistics), rstd.to(statistics)};
}

// native_layer_norm(input, normalized_shape, weight, bias, eps)
Lowering layer_norm_along(const CutCall& c) {
  auto& input = c.input(0);
  if (!fits(c.call, 0)) return {};  // the plain op's error
  auto dims = dims_from(first_normalized(c.call, 0), input.dim());
  if (!c.cuts(0, dims) || input.numel() == 0) return {};
  return [dims](Stack& stack) { normalize(stack, dims); };
}

void normalize_backward(Stack& stack, const std::vector<int64_t>& dims, const std::vector<int64_t>& leading) {
  auto input = stack[1].toTensor(), weight = optional_tensor(stack[5]);
  auto mask = stack[7].toBoolList();
  auto type = sum_type(input.scalar_type());
  auto x = settle(input);
  auto grad = lie_like(stack[0].toTensor(), x).to(type);
  auto rstd = stack[4].toTensor().to(type);
  auto normed = at::mul(at::sub(x.to(type), stack[3].toTensor().to(type)), rstd);
  auto over_leading = [&](const at::Tensor& terms) {  // there may be none
    return (leading.empty() ? terms : at::sum(terms, leading, false)).to(weight_type(weight, input));
  };
  Stack results(3, at::Tensor());
  if (mask[0]) {
    auto g = scaled(grad, weight);
    auto along = at::mul(normed, mean_over(at::mul(g, normed), dims, true));
    auto level = mean_over(g, dims, true);
    results[0] = at::mul(at::sub(at::sub(g, level), along), rstd).to(input.scalar_type());
  }
  if (mask[1]) results[1] = over_leading(at::mul(grad, normed));
  if (mask[2]) results[2] = over_leading(grad);
  stack = std::move(results);
}

// native_layer_norm_backward(grad, input, normalized_shape, mean, rstd, weight, bias, output_mask)
Lowering layer_norm_backward_along(const CutCall& c) {
  auto& input = c.input(1);
  auto first = first_normalized(c.call, 1);
  auto dims = dims_from(first, input.dim()), leading = dims_from(0, first);
  if (!c.cuts(1, dims) || input.numel() == 0) return {};
  return [dims, leading](Stack& stack) { normalize_backward(stack, dims, leading); };
}

}  // namespace

void add_layer_norm(RuleTable& t) {
  t.add("aten::native_layer_norm", layer_norm_rule());
  t.lower("aten::native_layer_norm", layer_norm_along);
  t.add("aten::native_layer_norm_backward", layer_norm_backward_rule());
  t.lower("aten::native_layer_norm_backward", layer_norm_backward_along);
  t.hands_on({"aten::layer_norm"});
}

}  // namespace intarsia
