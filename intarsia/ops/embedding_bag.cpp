// embedding_bag: bags may be cut, and so may the columns of the table. Indices are whole (they are small), every rank
// looks up those of its bags.

#include <ATen/ATen.h>

#include "intarsia/comm/trace.h"
#include "intarsia/ops/layouts.h"
#include "intarsia/rules/families.h"
#include "intarsia/tensor/meta.h"

namespace intarsia {
namespace {

using Stack = std::vector<c10::IValue>;

// The shards of a tensor that is whole everywhere; plain tensors count as that.
Shards everywhere(const at::Tensor& tensor, const DeviceMesh& mesh) {
  if (!tensor.defined()) return Shards(mesh.slots().size());
  return is_dtensor(tensor) ? shards_in(tensor, Layout::replicated(mesh)) : Shards(mesh.slots().size(), tensor);
}

at::Tensor wrapped(Shards shards, const Layout* layout, const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  return wrap(std::move(shards), layout, sizes, c10::contiguous_strides(sizes), c10::scalarTypeToTypeMeta(dtype));
}

const DeviceMesh* mesh_among(const Stack& stack) {
  for (auto& value : stack) {
    if (value.isTensor() && is_dtensor(value.toTensor())) return &mesh_of(value.toTensor());
  }
  return nullptr;
}

bool cut_on(const at::Tensor& tensor, int64_t axis, int64_t dim) {
  return is_dtensor(tensor) && placements_of(tensor)[axis] == Placement(Shard(dim));
}

// One rank's bags: a run of them, and the run of indices that they hold.
struct Bags {
  at::Tensor indices, offsets, weights;
  int64_t first_index = 0;

  Bags(const at::Tensor& all, const at::Tensor& starts, const at::Tensor& sample_weights, int64_t first, int64_t count) {
    auto start_of = [&](int64_t bag) {
      return bag < starts.size(0) ? starts[bag].item<int64_t>() : all.size(0);
    };
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

// Every rank has all indices and offsets. If some are out of range, the plain op says so, of a table with one column.
void check_places(const Stack& stack, const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets) {
  auto within = [](const at::Tensor& places, int64_t end) {
    return places.numel() == 0 || (places.min().item<int64_t>() >= 0 && places.max().item<int64_t>() < end);
  };
  if (within(indices, weight.size(0)) && within(offsets, indices.size(0) + 1)) return;
  auto table = at::zeros({weight.size(0), 1}, weight.options().device(indices.device()));
  at::_embedding_bag(table, indices, offsets, stack[3].toBool(), stack[4].toInt(), false, std::nullopt, stack[7].toBool(), stack[8].toInt());
}

// _embedding_bag(weight, indices, offsets, by_frequency, mode, sparse, sample weights, include_last_offset, padding)
bool embedding_bag(Stack& stack) {
  auto weight = stack[0].toTensor(), indices = stack[1].toTensor(), offsets = stack[2].toTensor();
  auto sample_weights = optional_tensor(stack[6]);
  auto* mesh = mesh_among(stack);
  if (!mesh || !is_dtensor(weight) || weight.dim() != 2 || indices.dim() != 1 || offsets.dim() != 1) return false;
  CauseScope cause("aten::_embedding_bag", true);
  auto mode = stack[4].toInt(), padding = stack[8].toInt();
  auto bags = offsets.size(0) - (stack[7].toBool() ? 1 : 0);
  if (bags < 0) return false;  // the plain op's error
  Placements for_weight, for_bags;
  for (int64_t axis = 0; axis < mesh->ndim(); ++axis) {
    bool columns = cut_on(weight, axis, 1);
    bool cut = !columns && (cut_on(indices, axis, 0) || cut_on(sample_weights, axis, 0) || cut_on(offsets, axis, 0));
    for_weight.push_back(columns ? Placement(Shard(1)) : Replicate());
    for_bags.push_back(columns ? Placement(Shard(1)) : cut ? Placement(Shard(0)) : Replicate());
  }
  auto tables = shards_in(weight, Layout::get(*mesh, for_weight));
  auto ids = everywhere(indices, *mesh), starts = everywhere(offsets, *mesh), scales = everywhere(sample_weights, *mesh);
  if (!ids.empty()) check_places(stack, weight, ids[0], starts[0]);
  auto* layout = Layout::get(*mesh, for_bags);
  std::vector<int64_t> sizes = {bags, weight.size(1)};
  auto counts_at = for_bags;
  for (auto& p : counts_at) {
    if (cut_dim(p) == 1) p = Replicate();
  }
  Shards outs, owners, counts, best;
  for (size_t slot = 0; slot < tables.size(); ++slot) {
    auto coordinate = mesh->slots()[slot].coordinate;
    Bags mine(ids[slot], starts[slot], scales[slot], local_offset(*layout, sizes, coordinate)[0],
              local_shape(*layout, sizes, coordinate)[0]);
    auto columns = tables[slot].size(1);
    owners.push_back(starts[slot].slice(0, 0, bags).clone());
    if (mine.offsets.size(0) == 0 || columns == 0) {
      outs.push_back(at::zeros({mine.offsets.size(0), columns}, tables[slot].options()));
      counts.push_back(at::zeros({mine.offsets.size(0)}, mine.offsets.options()));
      best.push_back(at::zeros({mine.offsets.size(0), columns}, mine.offsets.options()));
      continue;
    }
    auto [out, owner, count, largest] = at::_embedding_bag(
        tables[slot], mine.indices, mine.offsets, stack[3].toBool(), mode, false,
        mine.weights.defined() ? std::optional(mine.weights) : std::nullopt, false, padding);
    outs.push_back(out);
    counts.push_back(count);
    best.push_back(mode == 2 ? largest : at::zeros({mine.offsets.size(0), columns}, mine.offsets.options()));
  }
  auto index_type = offsets.scalar_type();
  stack = {wrapped(std::move(outs), layout, sizes, weight.scalar_type()),
           wrapped(std::move(owners), Layout::replicated(*mesh), {bags}, index_type),
           wrapped(std::move(counts), Layout::get(*mesh, counts_at), {bags}, index_type),
           wrapped(std::move(best), layout, sizes, index_type)};
  return true;
}

// The bags of every rank for a gradient that lies as `layout` says.
std::vector<Bags> bags_of(const Layout& layout, const at::Tensor& indices, const at::Tensor& starts,
                          const at::Tensor& sample_weights, at::IntArrayRef sizes) {
  auto& mesh = layout.mesh();
  auto ids = everywhere(indices, mesh), begins = everywhere(starts, mesh), scales = everywhere(sample_weights, mesh);
  std::vector<Bags> result;
  for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
    auto coordinate = mesh.slots()[slot].coordinate;
    result.emplace_back(ids[slot], begins[slot], scales[slot], local_offset(layout, sizes, coordinate)[0],
                        local_shape(layout, sizes, coordinate)[0]);
  }
  return result;
}

// _embedding_bag_backward(grad, indices, offsets, starts, counts, best, words, by_frequency, mode, sparse, weights, padding)
// Words are summed over bags; frequencies are those of all indices, so there bags stay together.
bool embedding_bag_backward(Stack& stack) {
  auto grad = stack[0].toTensor(), starts = stack[3].toTensor();
  auto counts = stack[4].toTensor(), best = stack[5].toTensor();
  if (!is_dtensor(grad) || !is_dtensor(starts)) return false;
  TORCH_CHECK_NOT_IMPLEMENTED(!stack[9].toBool(), "[embedding_bag] distributed tensors have no sparse gradients. "
                              "Pass sparse = false.");
  CauseScope cause("aten::_embedding_bag_backward", true);
  auto& mesh = mesh_of(grad);
  bool by_frequency = stack[7].toBool();
  Placements at, counts_at, out;
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    bool columns = cut_on(grad, axis, 1), bags = !columns && !by_frequency && cut_on(counts, axis, 0);
    at.push_back(columns ? Placement(Shard(1)) : bags ? Placement(Shard(0)) : Replicate());
    counts_at.push_back(bags ? Placement(Shard(0)) : Replicate());
    out.push_back(columns ? Placement(Shard(1)) : bags ? Placement(Partial()) : Replicate());
  }
  auto* layout = Layout::get(mesh, at);
  auto grads = shards_in(grad, layout), largest = shards_in(best, layout);
  auto bag_counts = shards_in(counts, Layout::get(mesh, counts_at));
  auto all = bags_of(*layout, stack[1].toTensor(), starts, optional_tensor(stack[10]), grad.sizes());
  auto words = stack[6].toInt(), mode = stack[8].toInt();
  Shards results;
  for (size_t slot = 0; slot < grads.size(); ++slot) {
    auto& mine = all[slot];
    if (grads[slot].numel() == 0 || mine.indices.numel() == 0) {
      results.push_back(at::zeros({words, grads[slot].size(1)}, grads[slot].options()));
      continue;
    }
    results.push_back(at::_embedding_bag_dense_backward(
        grads[slot].contiguous(), mine.indices, mine.bag_of_index(), bag_counts[slot], largest[slot], words, by_frequency, mode,
        mine.weights.defined() ? std::optional(mine.weights) : std::nullopt, stack[11].toInt()));
  }
  stack = {wrapped(std::move(results), Layout::get(mesh, out), {words, grad.size(1)}, grad.scalar_type())};
  return true;
}

// _embedding_bag_per_sample_weights_backward(grad, weight, indices, offsets, starts, mode, padding): each rank knows the
// terms of its bags and columns.
bool sample_weights_backward(Stack& stack) {
  auto grad = stack[0].toTensor(), weight = stack[1].toTensor(), indices = stack[2].toTensor(), starts = stack[4].toTensor();
  if (!is_dtensor(grad) || !is_dtensor(starts) || !is_dtensor(weight)) return false;
  CauseScope cause("aten::_embedding_bag_per_sample_weights_backward", true);
  auto& mesh = mesh_of(grad);
  Placements at, table_at, out;
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    bool columns = cut_on(weight, axis, 1), bags = !columns && cut_on(grad, axis, 0);
    at.push_back(columns ? Placement(Shard(1)) : bags ? Placement(Shard(0)) : Replicate());
    table_at.push_back(columns ? Placement(Shard(1)) : Replicate());
    out.push_back(columns || bags ? Placement(Partial()) : Replicate());
  }
  auto* layout = Layout::get(mesh, at);
  auto grads = shards_in(grad, layout), tables = shards_in(weight, Layout::get(mesh, table_at));
  auto all = bags_of(*layout, indices, starts, {}, grad.sizes());
  Shards results;
  for (size_t slot = 0; slot < grads.size(); ++slot) {
    auto& mine = all[slot];
    results.push_back(at::zeros({indices.size(0)}, grads[slot].options()));
    if (grads[slot].numel() == 0 || mine.indices.numel() == 0) continue;
    auto terms = at::_embedding_bag_per_sample_weights_backward(grads[slot], tables[slot], mine.indices, mine.offsets,
                                                                mine.bag_of_index(), stack[5].toInt(), stack[6].toInt());
    results.back().narrow(0, mine.first_index, terms.size(0)).copy_(terms);
  }
  stack = {wrapped(std::move(results), Layout::get(mesh, out), {indices.size(0)}, grad.scalar_type())};
  return true;
}

}  // namespace

void add_embedding_bag_ops(RuleTable& t) {
  t.decompose("aten::_embedding_bag", embedding_bag);
  t.decompose("aten::_embedding_bag_forward_only", embedding_bag);
  t.decompose("aten::_embedding_bag_backward", embedding_bag_backward);
  t.decompose("aten::_embedding_bag_per_sample_weights_backward", sample_weights_backward);
}

}  // namespace intarsia
