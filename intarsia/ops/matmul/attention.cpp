// Scaled dot product attention: the fused kernels for CPU, and attention written in matrix products.

#include <limits>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include "intarsia/dispatch/run.h"
#include "intarsia/ops/along/replicated.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// query [b, h, q, d], key and value [b, h, k, d]. Batch and heads may be sharded: heads are independent. So are
// queries, unless a causal mask counts them. With fewer key heads than query heads, each serves a group of queries.

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

// The kernels work on [b, q, h, d] and [b, q, h], and return transposed views; only the output has the query's strides.
std::vector<int64_t> heads_inside(at::IntArrayRef shape) {
  std::vector<int64_t> sizes(shape.begin(), shape.end());
  std::swap(sizes[1], sizes[2]);
  auto dense = c10::contiguous_strides(sizes);
  std::vector<int64_t> strides(dense.begin(), dense.end());
  std::swap(strides[1], strides[2]);
  return strides;
}

std::vector<std::vector<int64_t>> heads_inside_all(std::vector<std::vector<int64_t>> shapes) {
  for (auto& shape : shapes) shape = heads_inside(shape);
  return shapes;
}

// Whether a rank has queries; if not, its results are empty, or undefined.
auto has_queries(size_t query) {
  return [query](const OpCall& call, c10::ArrayRef<const Layout*> in, c10::ArrayRef<const Layout*>, const Slot& slot) {
    return in[query] && c10::multiply_integers(local_shape(*in[query], call.inputs[query].sizes, slot.coordinate)) > 0;
  };
}

std::vector<std::vector<int64_t>> attended(const OpCall& call) {
  auto& q = call.inputs[0].sizes;
  return {{q[0], q[1], q[2], call.inputs[2].sizes[3]}, {q[0], q[1], q[2]}};
}

void attend(LocalCall& local) {
  auto query = local.stack[0].toTensor(), value = local.stack[2].toTensor();
  if (query.numel() > 0) return local.call_plain();
  auto sizes = query.sizes().vec();  // a shard without heads
  auto sums = at::zeros({sizes[0], sizes[1], sizes[2]}, query.options().dtype(local.call.outputs[1].dtype));
  sizes[3] = value.size(3);
  local.stack = {at::zeros(sizes, query.options()), sums};
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
  rule.form.strides = [](const OpCall& call) {
    auto shapes = attended(call);
    auto strides = heads_inside_all(shapes);
    auto like_query = at::infer_dense_strides(shapes[0], call.inputs[0].strides);
    strides[0].assign(like_query.begin(), like_query.end());
    return strides;
  };
  rule.draws = false;
  rule.local.plain_does = has_queries(0);
  return std::move(rule).with_shapes(attended).with_local(attend);
}

// backward(grad, query, key, value, out, logsumexp, ..., mask)
void attend_backward(LocalCall& local) {
  if (local.stack[1].toTensor().numel() > 0) return local.call_plain();
  Stack zeros;
  for (int i : {1, 2, 3}) zeros.emplace_back(at::zeros_like(local.stack[i].toTensor()));
  local.stack = std::move(zeros);
}

std::vector<std::vector<int64_t>> like_attended(const OpCall& call) {
  return {sizes_of(call.inputs[1]), sizes_of(call.inputs[2]), sizes_of(call.inputs[3])};
}

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
  rule.form.strides = [](const OpCall& call) { return heads_inside_all(like_attended(call)); };
  rule.draws = false;
  rule.local.plain_does = has_queries(1);
  return std::move(rule).with_shapes(like_attended).with_local(attend_backward);
}

// Attention written in matrix products. A causal mask is created here, as a replicated tensor; the rest is LibTorch's.
std::tuple<at::Tensor, at::Tensor> attention_math(const at::Tensor& query, const at::Tensor& key,
                                                  const at::Tensor& value, const std::optional<at::Tensor>& mask,
                                                  double dropout, bool causal,
                                                  const std::optional<at::Tensor>& dropout_mask,
                                                  std::optional<double> scale, bool grouped) {
  auto allowed = mask;
  if (causal) {
    TORCH_CHECK(!mask || !mask->defined(),
                "_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True");
    auto later = at::ones({query.size(-2), key.size(-2)}, at::kBool).tril().logical_not();
    auto added =
        at::zeros(later.sizes(), query.scalar_type()).masked_fill_(later, -std::numeric_limits<double>::infinity());
    allowed = replicated_like(added, query);
  }
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("aten::_scaled_dot_product_attention_math", "")
                       .typed<std::tuple<at::Tensor, at::Tensor>(
                           const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                           double, bool, const std::optional<at::Tensor>&, std::optional<double>, bool)>();
  return op.redispatch(kComposite, query, key, value, allowed, dropout, false, dropout_mask, scale, grouped);
}

}  // namespace

void add_attention(RuleTable& t) {
  t.add("aten::_scaled_dot_product_flash_attention_for_cpu", attention());
  t.add("aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward());
  t.composite("aten::_scaled_dot_product_attention_math", attention_math);
  // Returns which kernel runs a call.
  t.traits("aten::_fused_sdp_choice").answers_by_form = true;
}

}  // namespace intarsia
