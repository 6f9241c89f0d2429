#include "intarsia/tensor/to_mesh.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/redistribute/run/between_meshes.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

// The layout in which a tensor leaves its mesh, pending reductions settled: each rank of the axis reduces a part, and
// that is what it sends. A scalar is reduced on all of them.
const Layout* before_leaving(const Layout* layout, c10::ArrayRef<int64_t> shape) {
  if (!layout->has_partial()) return layout;
  auto placements = layout->placements();
  auto longest = std::max_element(shape.begin(), shape.end()) - shape.begin();
  for (auto& placement : placements) {
    if (is_partial(placement)) placement = shape.empty() ? Placement(Replicate()) : Placement(Shard(longest));
  }
  return layout->with(placements);
}

bool is_within(c10::ArrayRef<int64_t> ranks, c10::ArrayRef<int64_t> others) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](int64_t rank) { return std::find(others.begin(), others.end(), rank) != others.end(); });
}

// Per group of `to`, the group of `from` whose tensor it gets; see Note [Groups between meshes].
std::vector<int64_t> givers(const DeviceMesh& from, const DeviceMesh& to) {
  std::vector<int64_t> result(to.group_count(), 0);
  if (from.group_count() == 1) return result;
  for (int64_t group = 0; group < to.group_count(); ++group) {
    auto& giver = result[group];
    while (giver < from.group_count() && !is_within(to.ranks(group), from.ranks(giver))) ++giver;
    TORCH_CHECK_VALUE(giver < from.group_count(), "[redistribute] ", from.text(),
                      " is a slice of another mesh and stands for ", from.group_count(),
                      " groups of ranks, which hold different tensors. The ranks ", to.ranks(group), " of ", to.text(),
                      " are not all in one of them, so it is ambiguous whose tensor they get. Use meshes whose ranks ",
                      "are, or gather the tensors first.");
  }
  return result;
}

Passage passage_of(const at::Tensor& tensor, const Layout* to) {
  auto* now = body_of(tensor).layout;
  TORCH_CHECK_VALUE(&now->mesh().world() == &to->mesh().world(), "[redistribute] ", now->mesh().text(), " and ",
                    to->mesh().text(), " belong to different worlds. Use meshes of one world.");
  TORCH_CHECK_VALUE(now->mesh().device_type() == to->mesh().device_type(), "[redistribute] ", now->mesh().text(),
                    " and ", to->mesh().text(),
                    " are of different devices. Move the tensor to the other device first.");
  auto* from = before_leaving(now, tensor.sizes());
  auto shards = from == now ? body_of(tensor).shards() : shards_in(tensor, from);
  for (auto& shard : shards) shard = shard.contiguous();
  return {from, to, {}, std::move(shards), c10::DimVector(tensor.sizes()), tensor.options().requires_grad(false)};
}

at::Tensor arrived(Shards shards, const at::Tensor& tensor, const Layout* to) {
  auto sizes = tensor.sizes();
  auto strides = c10::contiguous_strides(sizes);
  return wrap(std::move(shards), to, sizes, strides, tensor.dtype());
}

}  // namespace

std::vector<at::Tensor> moved_to_meshes(const std::vector<at::Tensor>& tensors, const std::vector<const Layout*>& to) {
  at::NoGradGuard no_grad;
  std::vector<std::vector<int64_t>> from_groups;  // all errors are found before anything is settled
  for (size_t i = 0; i < tensors.size(); ++i)
    from_groups.push_back(givers(body_of(tensors[i]).layout->mesh(), to[i]->mesh()));
  std::vector<Passage> passages;
  for (size_t i = 0; i < tensors.size(); ++i) {
    passages.push_back(passage_of(tensors[i], to[i]));
    for (size_t group = 0; group < from_groups[i].size(); ++group)
      passages.back().groups.push_back({from_groups[i][group], static_cast<int64_t>(group)});
  }
  auto carried = carry_between_meshes(passages);
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < tensors.size(); ++i) result.push_back(arrived(std::move(carried[i]), tensors[i], to[i]));
  return result;
}

at::Tensor gradient_to_mesh(const at::Tensor& grad, const Layout* to) {
  at::NoGradGuard no_grad;
  // In forward, group `group` of the gradient's mesh got its tensor from group givers[group]. One passage carries at
  // most one gradient to each.
  auto from_groups = givers(to->mesh(), body_of(grad).layout->mesh());
  auto way = passage_of(grad, to);
  std::vector<Passage> passages(1, way);
  std::vector<size_t> got(to->mesh().group_count(), 0);
  for (size_t group = 0; group < from_groups.size(); ++group) {
    auto place = got[from_groups[group]]++;
    if (place == passages.size()) passages.push_back(way);
    passages[place].groups.push_back({static_cast<int64_t>(group), from_groups[group]});
  }
  auto carried = carry_between_meshes(passages);
  for (size_t i = 1; i < carried.size(); ++i) {
    for (size_t slot = 0; slot < carried[0].size(); ++slot) carried[0][slot].add_(carried[i][slot]);
  }
  return arrived(std::move(carried[0]), grad, to);
}

}  // namespace intarsia
