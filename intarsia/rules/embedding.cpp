#include <ATen/ATen.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// embedding(weight, indices): every rank looks up the words that it has and leaves zeros for the others, so a table cut
// by words gives a pending sum.
void look_up(LocalCall& local) {
  auto weight = local.stack[0].toTensor(), indices = local.stack[1].toTensor();
  auto words = local.call.inputs[0].sizes[0];
  if (weight.size(0) == words) {
    local.stack = {at::embedding(weight, indices)};
    return;
  }
  auto outside = at::lt(indices, 0).logical_or_(at::ge(indices, words));
  TORCH_CHECK_INDEX(!outside.any().item<bool>(), "index out of range in self");
  auto first = local_offset(*local.in[0], local.call.inputs[0].sizes, local.slot.coordinate)[0];
  auto own = at::sub(indices, first);
  auto elsewhere = at::lt(own, 0).logical_or_(at::ge(own, weight.size(0)));
  auto shape = indices.sizes().vec();
  shape.push_back(weight.size(1));
  auto found = weight.size(0) == 0 ? at::zeros(shape, weight.options())
                                   : at::embedding(weight, own.masked_fill(elsewhere, 0));
  local.stack = {found.masked_fill_(elsewhere.unsqueeze(-1), 0)};
}

Rule embedding() {
  Rule rule = rows("embedding", [](const OpCall& call) {
    auto positions = call.inputs[1].dim();
    Rows rows = {{{S(0), R}, {P_sum}}, {{S(1), R}, {S(positions)}}, {{P_sum, R}, {P_sum}}, {{P_avg, R}, {P_avg}}};
    for (int64_t d = 0; d < positions; ++d) rows.push_back({{R, S(d)}, {S(d)}});
    return rows;
  });
  rule.shapes = [](const OpCall& call) -> std::vector<std::vector<int64_t>> {
    std::vector<int64_t> shape(call.inputs[1].sizes.begin(), call.inputs[1].sizes.end());
    shape.push_back(call.inputs[0].sizes[1]);
    return {shape};
  };
  return std::move(rule).with_local(look_up);
}

// embedding_dense_backward(grad, indices, ...): a sum over positions, unless each word's is divided by its frequency.
Rule embedding_backward() {
  Rule rule = rows("embedding", [](const OpCall& call) {
    auto positions = call.inputs[1].dim();
    Rows rows = {{{S(positions), R}, {S(1)}}, {{P_sum, R}, {P_sum}}, {{P_avg, R}, {P_avg}}};
    if (call.bool_arg("scale_grad_by_freq", false)) return rows;
    for (int64_t d = 0; d < positions; ++d) rows.push_back({{S(d), S(d)}, {P_sum}});
    return rows;
  });
  rule.shapes = [](const OpCall& call) -> std::vector<std::vector<int64_t>> {
    return {{call.int_arg("num_weights", 0), call.inputs[0].sizes.back()}};
  };
  return rule;
}

// embedding_renorm(weight, indices, max_norm, norm_type): every rank shortens the words that it holds.
void shorten(LocalCall& local) {
  auto weight = local.stack[0].toTensor().clone(), indices = local.stack[1].toTensor();
  auto words = local.call.inputs[0].sizes[0];
  auto first = local_offset(*local.in[0], local.call.inputs[0].sizes, local.slot.coordinate)[0];
  auto outside = at::lt(indices, -words).logical_or_(at::ge(indices, words));
  if (outside.any().item<bool>()) {  // the plain op selects, which says so
    weight.new_zeros({1, 1}).expand(local.call.inputs[0].sizes).select(0, indices.masked_select(outside)[0].item<int64_t>());
  }
  auto own = at::where(at::lt(indices, 0), indices + words, indices) - first;
  own = own.masked_select(at::ge(own, 0).logical_and_(at::lt(own, weight.size(0)))).contiguous();
  if (own.numel() > 0) at::embedding_renorm_(weight, own, local.stack[2].toDouble(), local.stack[3].toDouble());
  local.stack = {weight};
}

Rule embedding_renorm() {
  Rule rule = rows("embedding", [](const OpCall&) { return Rows{{{S(0), R}, {S(0)}}}; });
  rule.shapes = [](const OpCall& call) -> std::vector<std::vector<int64_t>> {
    return {{call.inputs[0].sizes.begin(), call.inputs[0].sizes.end()}};
  };
  rule.dtypes = [](const OpCall& call) { return std::vector<c10::ScalarType>{call.inputs[0].dtype}; };
  return std::move(rule).with_local(shorten);
}

}  // namespace

void add_embedding_rules(RuleTable& t) {
  t["aten::embedding_renorm"] = embedding_renorm();
  t["aten::embedding"] = embedding();
  t["aten::embedding_dense_backward"] = embedding_backward();
}

}  // namespace intarsia
