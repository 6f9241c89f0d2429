// embedding_bag: bags may be sharded, and so may the columns of the table. Indices are replicated (they are small), and
// every rank looks up those of its bags.

#include <ATen/ATen.h>

#include "intarsia/ops/along/layouts.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

// The shards of a replicated tensor, or of a plain one.
Shards everywhere(const at::Tensor& tensor, const DeviceMesh& mesh) {
  if (!tensor.defined()) return Shards(mesh.slots().size());
  return is_dtensor(tensor) ? shards_in(tensor, Layout::replicated(mesh)) : Shards(mesh.slots().size(), tensor);
}

at::Tensor wrapped(Shards shards, const Layout* layout, const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  return wrap(std::move(shards), layout, sizes, c10::contiguous_strides(sizes), c10::scalarTypeToTypeMeta(dtype));
}

std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

bool cut_on(const CutCall& c, size_t tensor, int64_t axis, int64_t dim) {
  return c.is_distributed(tensor) && c.now[tensor]->placements()[axis] == Placement(Shard(dim));
}

// One rank's bags: a run of them, and the run of indices that they hold.
struct Bags {
  at::Tensor indices, offsets, weights;
  int64_t first_index = 0;

  Bags(const at::Tensor& all, const at::Tensor& starts, const at::Tensor& sample_weights, int64_t first,
       int64_t count) {
    auto start_of = [&](int64_t bag) { return bag < starts.size(0) ? starts[bag].item<int64_t>() : all.size(0); };
    first_index = count ? start_of(first) : 0;
    auto end = count ? start_of(first + count) : 0;
    indices = all.slice(0, first_index, end).contiguous();
    offsets = starts.slice(0, first, first + count) - first_index;
    if (sample_weights.defined()) weights = sample_weights.slice(0, first_index, end).contiguous();
  }

  // The bag of each index: the last one that begins at or before it.
  at::Tensor bag_of_index() const {
    auto places = at::arange(indices.size(0), offsets.options());
    return (at::searchsorted(offsets.contiguous(), places, false, true) - 1).to(indices.scalar_type());
  }
};

// The bags of every rank, for tensors of `sizes` [bags, columns] in `layout`, when all ranks have all indices.
std::vector<Bags> bags_of(const Layout& layout, const Shards& indices, const Shards& starts,
                          const Shards& sample_weights, at::IntArrayRef sizes) {
  auto& slots = layout.mesh().slots();
  std::vector<Bags> result;
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    auto& coordinate = slots[slot].coordinate;
    result.emplace_back(indices[slot], starts[slot], sample_weights[slot], local_offset(layout, sizes, coordinate)[0],
                        local_shape(layout, sizes, coordinate)[0]);
  }
  return result;
}

// Every rank has all indices and offsets. If some are out of range, the plain op raises its error, on a table with one
// column.
void check_places(const Stack& stack, const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets) {
  auto within = [](const at::Tensor& places, int64_t end) {
    return places.numel() == 0 || (places.min().item<int64_t>() >= 0 && places.max().item<int64_t>() < end);
  };
  if (within(indices, weight.size(0)) && within(offsets, indices.size(0) + 1)) return;
  auto table = at::zeros({weight.size(0), 1}, weight.options().device(indices.device()));
  at::_embedding_bag(table, indices, offsets, stack[3].toBool(), stack[4].toInt(), false, std::nullopt,
                     stack[7].toBool(), stack[8].toInt());
}

// The layout that the table of a call needs, and the layouts of its results.
struct BagLayouts {
  const Layout *table, *out, *counts;
  std::vector<int64_t> sizes;  // of the output: bags, columns
};

// _embedding_bag(weight, indices, offsets, by_frequency, mode, sparse, sample weights, include_last_offset, padding)
void look_up_bags(Stack& stack, const BagLayouts& lie) {
  auto weight = stack[0].toTensor(), indices = stack[1].toTensor(), offsets = stack[2].toTensor();
  auto& mesh = lie.out->mesh();
  auto mode = stack[4].toInt(), bags = lie.sizes[0];
  auto tables = shards_in(weight, lie.table);
  auto ids = everywhere(indices, mesh), starts = everywhere(offsets, mesh),
       scales = everywhere(optional_tensor(stack[6]), mesh);
  if (!ids.empty()) check_places(stack, weight, ids[0], starts[0]);
  auto all = bags_of(*lie.out, ids, starts, scales, lie.sizes);
  Shards outs, owners, counts, best;
  for (size_t slot = 0; slot < tables.size(); ++slot) {
    auto& mine = all[slot];
    auto held = mine.offsets.size(0), columns = tables[slot].size(1);
    owners.push_back(starts[slot].slice(0, 0, bags).clone());
    if (held == 0 || columns == 0) {
      outs.push_back(at::zeros({held, columns}, tables[slot].options()));
      counts.push_back(at::zeros({held}, mine.offsets.options()));
      best.push_back(at::zeros({held, columns}, mine.offsets.options()));
      continue;
    }
    auto [out, owner, count, largest] =
        at::_embedding_bag(tables[slot], mine.indices, mine.offsets, stack[3].toBool(), mode, false,
                           if_defined(mine.weights), false, stack[8].toInt());
    outs.push_back(out);
    counts.push_back(count);
    best.push_back(mode == 2 ? largest : at::zeros({held, columns}, mine.offsets.options()));
  }
  auto index_type = offsets.scalar_type();
  stack = {wrapped(std::move(outs), lie.out, lie.sizes, weight.scalar_type()),
           wrapped(std::move(owners), Layout::replicated(mesh), {bags}, index_type),
           wrapped(std::move(counts), lie.counts, {bags}, index_type),
           wrapped(std::move(best), lie.out, lie.sizes, index_type)};
}

Lowering plan_bags(const CutCall& c) {
  if (!c.share_a_mesh() || !c.is_distributed(0) || c.input(0).dim() != 2 || c.input(1).dim() != 1 ||
      c.input(2).dim() != 1)
    return {};
  auto bags = c.input(2).sizes[0] - (c.call.bool_arg("include_last_offset", false) ? 1 : 0);
  if (bags < 0) return {};  // the plain op's error
  auto& mesh = c.now[0]->mesh();
  Placements table, out, counts;
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    bool columns = cut_on(c, 0, axis, 1);
    bool cut = !columns && (cut_on(c, 1, axis, 0) || cut_on(c, 2, axis, 0) || cut_on(c, 3, axis, 0));
    table.push_back(columns ? Placement(Shard(1)) : Replicate());
    out.push_back(columns ? Placement(Shard(1)) : cut ? Placement(Shard(0)) : Replicate());
    counts.push_back(cut ? Placement(Shard(0)) : Replicate());
  }
  BagLayouts lie{
      Layout::get(mesh, table), Layout::get(mesh, out), Layout::get(mesh, counts), {bags, c.input(0).sizes[1]}};
  return [lie](Stack& stack) { look_up_bags(stack, lie); };
}

// The layouts that the tensors of a gradient need, and that of the result: `beside` gives that of the counts of bags,
// or of the table.
struct BagGradientLayouts {
  const Layout *grad, *beside, *out;
};

// _embedding_bag_backward(grad, indices, offsets, starts, counts, best, words, by_frequency, mode, sparse, weights,
// padding)
void add_up_bags(Stack& stack, const BagGradientLayouts& lie) {
  auto grad = stack[0].toTensor();
  auto& mesh = lie.grad->mesh();
  auto grads = shards_in(grad, lie.grad), largest = shards_in(stack[5].toTensor(), lie.grad);
  auto counts = shards_in(stack[4].toTensor(), lie.beside);
  auto all = bags_of(*lie.grad, everywhere(stack[1].toTensor(), mesh), everywhere(stack[3].toTensor(), mesh),
                     everywhere(optional_tensor(stack[10]), mesh), grad.sizes());
  auto words = stack[6].toInt(), mode = stack[8].toInt();
  Shards results;
  for (size_t slot = 0; slot < grads.size(); ++slot) {
    auto& mine = all[slot];
    if (grads[slot].numel() == 0 || mine.indices.numel() == 0) {
      results.push_back(at::zeros({words, grads[slot].size(1)}, grads[slot].options()));
      continue;
    }
    results.push_back(at::_embedding_bag_dense_backward(grads[slot].contiguous(), mine.indices, mine.bag_of_index(),
                                                        counts[slot], largest[slot], words, stack[7].toBool(), mode,
                                                        if_defined(mine.weights), stack[11].toInt()));
  }
  stack = {wrapped(std::move(results), lie.out, {words, grad.size(1)}, grad.scalar_type())};
}

// Words are summed over bags; frequencies are those of all indices, so in that case bags are not sharded.
Lowering plan_bags_backward(const CutCall& c) {
  if (!c.share_a_mesh() || !c.is_distributed(0) || !c.is_distributed(3)) return {};
  TORCH_CHECK_NOT_IMPLEMENTED(!c.call.bool_arg("sparse", false),
                              "[embedding_bag] distributed tensors have no sparse gradients. "
                              "Pass sparse = false.");
  auto& mesh = c.now[0]->mesh();
  bool by_frequency = c.call.bool_arg("scale_grad_by_freq", false);
  Placements grad, counts, out;
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    bool columns = cut_on(c, 0, axis, 1), bags = !columns && !by_frequency && cut_on(c, 4, axis, 0);
    grad.push_back(columns ? Placement(Shard(1)) : bags ? Placement(Shard(0)) : Replicate());
    counts.push_back(bags ? Placement(Shard(0)) : Replicate());
    out.push_back(columns ? Placement(Shard(1)) : bags ? Placement(Partial()) : Replicate());
  }
  BagGradientLayouts lie{Layout::get(mesh, grad), Layout::get(mesh, counts), Layout::get(mesh, out)};
  return [lie](Stack& stack) { add_up_bags(stack, lie); };
}

// _embedding_bag_per_sample_weights_backward(grad, weight, indices, offsets, starts, mode, padding): each rank has the
// terms of its bags and columns.
void add_up_sample_weights(Stack& stack, const BagGradientLayouts& lie) {
  auto grad = stack[0].toTensor(), indices = stack[2].toTensor();
  auto& mesh = lie.grad->mesh();
  auto grads = shards_in(grad, lie.grad), tables = shards_in(stack[1].toTensor(), lie.beside);
  auto all = bags_of(*lie.grad, everywhere(indices, mesh), everywhere(stack[4].toTensor(), mesh), everywhere({}, mesh),
                     grad.sizes());
  Shards results;
  for (size_t slot = 0; slot < grads.size(); ++slot) {
    auto& mine = all[slot];
    results.push_back(at::zeros({indices.size(0)}, grads[slot].options()));
    if (grads[slot].numel() == 0 || mine.indices.numel() == 0) continue;
    auto terms = at::_embedding_bag_per_sample_weights_backward(
        grads[slot], tables[slot], mine.indices, mine.offsets, mine.bag_of_index(), stack[5].toInt(), stack[6].toInt());
    results.back().narrow(0, mine.first_index, terms.size(0)).copy_(terms);
  }
  stack = {wrapped(std::move(results), lie.out, {indices.size(0)}, grad.scalar_type())};
}

Lowering plan_sample_weights_backward(const CutCall& c) {
  if (!c.share_a_mesh() || !c.is_distributed(0) || !c.is_distributed(1) || !c.is_distributed(4)) return {};
  auto& mesh = c.now[0]->mesh();
  Placements grad, table, out;
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    bool columns = cut_on(c, 1, axis, 1), bags = !columns && cut_on(c, 0, axis, 0);
    grad.push_back(columns ? Placement(Shard(1)) : bags ? Placement(Shard(0)) : Replicate());
    table.push_back(columns ? Placement(Shard(1)) : Replicate());
    out.push_back(columns || bags ? Placement(Partial()) : Replicate());
  }
  BagGradientLayouts lie{Layout::get(mesh, grad), Layout::get(mesh, table), Layout::get(mesh, out)};
  return [lie](Stack& stack) { add_up_sample_weights(stack, lie); };
}

}  // namespace

void add_embedding_bag(RuleTable& t) {
  t.lower("aten::_embedding_bag", plan_bags);
  t.lower("aten::_embedding_bag_forward_only", plan_bags);
  t.lower("aten::_embedding_bag_backward", plan_bags_backward);
  t.lower("aten::_embedding_bag_per_sample_weights_backward", plan_sample_weights_backward);
}

}  // namespace intarsia
