#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// query [b, h, q, d], key and value [b, h, k, d]. Batch and heads may be cut: every head is on its own. So is every query,
// unless a causal mask counts them. With fewer key heads than query heads, each serves a group of queries.

// A mask broadcasts to [b, h, q, k].
Placement mask_cut(const TensorForm& mask, const TensorForm& query, int64_t dim) {
  auto own = dim - (4 - mask.dim());
  return mask.defined && own >= 0 && mask.sizes[own] == query.sizes[dim] ? S(own) : R;
}

bool whole_groups(const OpCall& call, const Layout& query, size_t first) {
  auto heads = call.inputs[first].sizes[1], key_heads = call.inputs[first + 1].sizes[1];
  int64_t parts = 1;
  for (int64_t axis = 0; axis < query.mesh().ndim(); ++axis) {
    if (cut_dim(query.placements()[axis]) == 1) parts *= query.mesh().size(axis);
  }
  return heads == key_heads || parts == 1 || key_heads % parts == 0;
}

// The kernels work on [b, q, h, d] and [b, q, h], and hand back transposed views; only the output lies as the query does.
std::vector<int64_t> heads_inside(at::IntArrayRef shape) {
  std::vector<int64_t> sizes(shape.begin(), shape.end());
  std::swap(sizes[1], sizes[2]);
  auto dense = c10::contiguous_strides(sizes);
  std::vector<int64_t> strides(dense.begin(), dense.end());
  std::swap(strides[1], strides[2]);
  return strides;
}

// Beside the shapes that a rule tells.
void with_heads_inside(Rule& rule) {
  rule.strides = [shapes = rule.shapes](const OpCall& call) {
    auto strides = shapes(call);
    for (auto& result : strides) result = heads_inside(result);
    return strides;
  };
}

// A rank without queries: its results are empty, or nothing.
std::function<bool(const OpCall&, c10::ArrayRef<const Layout*>, c10::ArrayRef<const Layout*>, const Slot&)> has_queries(size_t query) {
  return [query](const OpCall& call, c10::ArrayRef<const Layout*> in, c10::ArrayRef<const Layout*>, const Slot& slot) {
    return in[query] && c10::multiply_integers(local_shape(*in[query], call.inputs[query].sizes, slot.coordinate)) > 0;
  };
}

Rule attention() {
  Rule rule = rows("attention", [](const OpCall& call) {
    auto& query = call.inputs[0];
    auto& mask = call.inputs[3];
    Rows rows;
    for (int64_t d : {0, 1}) rows.push_back({{S(d), S(d), S(d), mask_cut(mask, query, d)}, {S(d), S(d)}});
    if (!call.bool_arg("is_causal", false)) rows.push_back({{S(2), R, R, mask_cut(mask, query, 2)}, {S(2), S(2)}});
    return rows;
  });
  rule.legal = [](const OpCall& call, const Layout& query, const Layout&) { return whole_groups(call, query, 0); };
  rule.shapes = [](const OpCall& call) -> std::vector<std::vector<int64_t>> {
    auto& q = call.inputs[0].sizes;
    return {{q[0], q[1], q[2], call.inputs[2].sizes[3]}, {q[0], q[1], q[2]}};
  };
  with_heads_inside(rule);
  rule.strides = [inside = rule.strides, shapes = rule.shapes](const OpCall& call) {
    auto strides = inside(call);
    auto like_query = at::infer_dense_strides(shapes(call)[0], call.inputs[0].strides);
    strides[0].assign(like_query.begin(), like_query.end());
    return strides;
  };
  rule.plain_does = has_queries(0);
  return std::move(rule).with_local([](LocalCall& local) {
    auto query = local.stack[0].toTensor(), value = local.stack[2].toTensor();
    if (query.numel() == 0) {  // a shard without heads
      auto sizes = query.sizes().vec();
      auto sums = at::zeros({sizes[0], sizes[1], sizes[2]}, query.options().dtype(local.call.outputs[1].dtype));
      sizes[3] = value.size(3);
      local.stack = {at::zeros(sizes, query.options()), sums};
      return;
    }
    local.call_plain();
  });
}

// backward(grad, query, key, value, out, logsumexp, ..., mask)
Rule attention_backward() {
  Rule rule = rows("attention", [](const OpCall& call) {
    auto& query = call.inputs[1];
    auto& mask = call.inputs[6];
    Rows rows;
    for (int64_t d : {0, 1}) {
      rows.push_back({{S(d), S(d), S(d), S(d), S(d), S(d), mask_cut(mask, query, d)}, {S(d), S(d), S(d)}});
    }
    if (!call.bool_arg("is_causal", false)) {  // the keys serve the queries of all ranks
      rows.push_back({{S(2), S(2), R, R, S(2), S(2), mask_cut(mask, query, 2)}, {S(2), P_sum, P_sum}});
    }
    return rows;
  });
  rule.legal = [](const OpCall& call, const Layout& grad, const Layout&) { return whole_groups(call, grad, 1); };
  rule.shapes = [](const OpCall& call) {
    std::vector<std::vector<int64_t>> shapes;
    for (int i : {1, 2, 3}) shapes.emplace_back(call.inputs[i].sizes.begin(), call.inputs[i].sizes.end());
    return shapes;
  };
  with_heads_inside(rule);
  rule.plain_does = has_queries(1);
  return std::move(rule).with_local([](LocalCall& local) {
    if (local.stack[1].toTensor().numel() == 0) {
      std::vector<c10::IValue> zeros;
      for (int i : {1, 2, 3}) zeros.emplace_back(at::zeros_like(local.stack[i].toTensor()));
      local.stack = std::move(zeros);
      return;
    }
    local.call_plain();
  });
}

}  // namespace

void add_attention_rules(RuleTable& t) {
  t["aten::_scaled_dot_product_flash_attention_for_cpu"] = attention();
  t["aten::_scaled_dot_product_flash_attention_for_cpu_backward"] = attention_backward();
}

}  // namespace intarsia
