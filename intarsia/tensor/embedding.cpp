#include "intarsia/tensor/embedding.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "intarsia/comm/trace.h"
#include "intarsia/tensor/autograd.h"
#include "intarsia/tensor/meta.h"

namespace intarsia {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool cuts_words(const Layout& table) {
  for (auto& placement : table.placements()) {
    if (placement == Placement(Shard(0))) return true;
  }
  return false;
}

// Where the table is cut by words, every rank adds up the gradients of its own words: the gradient of the output and
// the indices are made whole along those axes, and nothing is sent afterwards.
at::Tensor grad_by_words(const at::Tensor& grad, const at::Tensor& indices, const Layout& table, int64_t words,
                         int64_t padding) {
  Placements for_grad, for_indices, out;
  for (size_t axis = 0; axis < table.placements().size(); ++axis) {
    auto& mine = placements_of(grad)[axis];
    bool by_position = cut_dim(mine) >= 0 && cut_dim(mine) < indices.dim() && is_shard(mine);
    if (table.placements()[axis] == Placement(Shard(0))) {
      for_grad.push_back(Replicate()), for_indices.push_back(Replicate()), out.push_back(Shard(0));
    } else if (by_position) {
      for_grad.push_back(mine), for_indices.push_back(mine), out.push_back(Partial());
    } else if (is_shard(mine)) {
      for_grad.push_back(mine), for_indices.push_back(Replicate()), out.push_back(Shard(1));
    } else {
      bool pending = mine == Placement(Partial());
      for_grad.push_back(pending ? mine : Replicate()), for_indices.push_back(Replicate());
      out.push_back(pending ? mine : Replicate());
    }
  }
  auto g = redistribute(grad, for_grad), ids = redistribute(indices, for_indices);
  auto* layout = table.with(out);
  std::vector<int64_t> sizes = {words, grad.size(-1)};
  Shards shards;
  auto& slots = layout->mesh().slots();
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    auto count = local_shape(*layout, sizes, slots[slot].coordinate)[0];
    auto first = local_offset(*layout, sizes, slots[slot].coordinate)[0];
    auto& mine = shards_of(ids)[slot];
    if (mine.is_meta()) {  // see Note [Tensors without data]
      shards.push_back(at::empty({count, grad.size(-1)}, shards_of(g)[slot].options()));
      continue;
    }
    auto local = mine - first;
    auto elsewhere = (local < 0).logical_or_(local >= count).logical_or_(mine == padding);
    // One row more takes what belongs to others.
    auto sums = at::embedding_dense_backward(shards_of(g)[slot], local.masked_fill(elsewhere, count), count + 1, -1, false);
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
  TORCH_CHECK_NOT_IMPLEMENTED(!sparse, "[embedding] distributed tensors have no sparse gradients. Pass sparse = false.");
  return Embedding::apply(weight, indices, padding, by_frequency);
}

}  // namespace

void register_embedding(torch::Library& aten_autograd) { aten_autograd.impl("embedding", embedding_with_grad); }

}  // namespace intarsia
