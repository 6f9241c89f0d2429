// embedding: a lookup in a table that may be sharded by words or by columns, with a gradient in the table's layout.

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "intarsia/comm/trace.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// embedding(weight, indices): every rank looks up the words that it holds and leaves zeros for the others, so a table
// sharded by words gives a pending sum.
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
  auto found =
      weight.size(0) == 0 ? at::zeros(shape, weight.options()) : at::embedding(weight, own.masked_fill(elsewhere, 0));
  local.stack = {found.masked_fill_(elsewhere.unsqueeze(-1), 0)};
}

Rule lookup() {
  return rows("embedding",
              [](const OpCall& call) {
                auto positions = call.inputs[1].dim();
                Rows rows = {
                    {{S(0), R}, {P_sum}}, {{S(1), R}, {S(positions)}}, {{P_sum, R}, {P_sum}}, {{P_avg, R}, {P_avg}}};
                for (int64_t d = 0; d < positions; ++d) rows.push_back({{R, S(d)}, {S(d)}});
                return rows;
              })
      .with_shapes([](const OpCall& call) -> std::vector<std::vector<int64_t>> {
        auto shape = sizes_of(call.inputs[1]);
        shape.push_back(call.inputs[0].sizes[1]);
        return {shape};
      })
      .with_local(look_up)
      .refusing({1});
}

// embedding_dense_backward(grad, indices, ...): a sum over positions, unless each word's is divided by its frequency.
Rule lookup_backward() {
  return rows("embedding",
              [](const OpCall& call) {
                auto positions = call.inputs[1].dim();
                Rows rows = {{{S(positions), R}, {S(1)}}, {{P_sum, R}, {P_sum}}, {{P_avg, R}, {P_avg}}};
                if (call.bool_arg("scale_grad_by_freq", false)) return rows;
                for (int64_t d = 0; d < positions; ++d) rows.push_back({{S(d), S(d)}, {P_sum}});
                return rows;
              })
      .with_shapes([](const OpCall& call) -> std::vector<std::vector<int64_t>> {
        return {{call.int_arg("num_weights", 0), call.inputs[0].sizes.back()}};
      });
}

// embedding_renorm(weight, indices, max_norm, norm_type): every rank shortens the words that it holds.
void shorten(LocalCall& local) {
  auto weight = local.stack[0].toTensor().clone(), indices = local.stack[1].toTensor();
  auto words = local.call.inputs[0].sizes[0];
  auto first = local_offset(*local.in[0], local.call.inputs[0].sizes, local.slot.coordinate)[0];
  auto outside = at::lt(indices, -words).logical_or_(at::ge(indices, words));
  if (outside.any().item<bool>()) {  // the plain op selects words and raises this error
    weight.new_zeros({1, 1})
        .expand(local.call.inputs[0].sizes)
        .select(0, indices.masked_select(outside)[0].item<int64_t>());
  }
  auto own = at::where(at::lt(indices, 0), indices + words, indices) - first;
  own = own.masked_select(at::ge(own, 0).logical_and_(at::lt(own, weight.size(0)))).contiguous();
  if (own.numel() > 0) at::embedding_renorm_(weight, own, local.stack[2].toDouble(), local.stack[3].toDouble());
  local.stack = {weight};
}

Rule shortening() {
  return rows("embedding", [](const OpCall&) { return Rows{{{S(0), R}, {S(0)}}}; })
      .like_input(0)
      .with_local(shorten)
      .refusing({1});
}

// --- The gradient: a table sharded by words gets a gradient sharded by words.

bool cuts_words(const Layout& table) {
  for (auto& placement : table.placements()) {
    if (placement == Placement(Shard(0))) return true;
  }
  return false;
}

// The layouts that the gradient of the output and the indices need, and the layout of the table's gradient.
struct WordLayouts {
  Placements grad, indices, out;

  WordLayouts(const Placements& now, const Layout& table, int64_t positions) {
    for (size_t axis = 0; axis < table.placements().size(); ++axis) {
      auto& mine = now[axis];
      bool by_position = cut_dim(mine) >= 0 && cut_dim(mine) < positions && is_shard(mine);
      if (table.placements()[axis] == Placement(Shard(0))) {
        add(Replicate(), Replicate(), Shard(0));
      } else if (by_position) {
        add(mine, mine, Partial());
      } else if (is_shard(mine)) {
        add(mine, Replicate(), Shard(1));
      } else {
        auto kept = mine == Placement(Partial()) ? mine : Placement(Replicate());
        add(kept, Replicate(), kept);
      }
    }
  }

  void add(Placement for_grad, Placement for_indices, Placement for_table) {
    grad.push_back(std::move(for_grad));
    indices.push_back(std::move(for_indices));
    out.push_back(std::move(for_table));
  }
};

// If the table is sharded by words, every rank adds up the gradients of its own words: the gradient of the output and
// the indices are gathered along those axes, and nothing is sent afterwards.
at::Tensor grad_by_words(const at::Tensor& grad, const at::Tensor& indices, const Layout& table, int64_t words,
                         int64_t padding) {
  WordLayouts lie(placements_of(grad), table, indices.dim());
  auto g = redistribute(grad, lie.grad), ids = redistribute(indices, lie.indices);
  auto* layout = table.with(lie.out);
  std::vector<int64_t> sizes = {words, grad.size(-1)};
  Shards shards;
  auto& slots = layout->mesh().slots();
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    auto count = local_shape(*layout, sizes, slots[slot].coordinate)[0];
    auto first = local_offset(*layout, sizes, slots[slot].coordinate)[0];
    auto& mine = body_of(ids).shards()[slot];
    if (mine.is_meta()) {  // see Note [Tensors without data]
      shards.push_back(at::empty({count, grad.size(-1)}, body_of(g).shards()[slot].options()));
      continue;
    }
    auto local = mine - first;
    auto elsewhere = (local < 0).logical_or_(local >= count).logical_or_(mine == padding);
    // One extra row collects what belongs to other ranks.
    auto sums = at::embedding_dense_backward(body_of(g).shards()[slot], local.masked_fill(elsewhere, count), count + 1,
                                             -1, false);
    shards.push_back(sums.narrow(0, 0, count));
  }
  auto strides = c10::contiguous_strides(sizes);
  return wrap(std::move(shards), layout, sizes, strides, grad.dtype());
}

struct Embedding : torch::autograd::Function<Embedding> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weight, const at::Tensor& indices, int64_t padding,
                            bool by_frequency) {
    ctx->save_for_backward({indices});
    if (is_dtensor(weight)) ctx->saved_data["layout"] = reinterpret_cast<int64_t>(&layout_of(weight));
    ctx->saved_data["words"] = weight.size(0);
    ctx->saved_data["padding"] = padding;
    ctx->saved_data["by_frequency"] = by_frequency;
    at::AutoDispatchBelowADInplaceOrView guard;
    return at::embedding(weight, indices, padding, by_frequency, false);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto indices = ctx->get_saved_variables()[0];
    auto words = ctx->saved_data["words"].toInt(), padding = ctx->saved_data["padding"].toInt();
    bool by_frequency = ctx->saved_data["by_frequency"].toBool();
    auto layout = ctx->saved_data.find("layout");
    if (layout != ctx->saved_data.end() && is_dtensor(indices) && is_dtensor(grads[0]) && !by_frequency &&
        !(at::GradMode::is_enabled() && grads[0].requires_grad())) {
      auto& table = *reinterpret_cast<const Layout*>(layout->second.toInt());
      CauseScope cause("embedding backward", true);
      if (cuts_words(table)) return {grad_by_words(grads[0], indices, table, words, padding), {}, {}, {}};
    }
    return {at::embedding_dense_backward(grads[0], indices, words, padding, by_frequency), {}, {}, {}};
  }
};

at::Tensor embedding_with_grad(const at::Tensor& weight, const at::Tensor& indices, int64_t padding, bool by_frequency,
                               bool sparse) {
  TORCH_CHECK_NOT_IMPLEMENTED(!sparse,
                              "[embedding] distributed tensors have no sparse gradients. Pass sparse = false.");
  return Embedding::apply(weight, indices, padding, by_frequency);
}

}  // namespace

void add_embedding(RuleTable& t) {
  t.add("aten::embedding", lookup());
  t.add("aten::embedding_dense_backward", lookup_backward());
  t.add("aten::embedding_renorm", shortening());
  t.gradient("aten::embedding", embedding_with_grad);
}

}  // namespace intarsia
