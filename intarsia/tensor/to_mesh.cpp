#include "intarsia/tensor/to_mesh.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/redistribute/between_meshes.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

// Where a pending reduction is settled before the tensor leaves its mesh: each rank of the axis reduces a part, which is what
// it gives away then. A scalar is reduced on all of them.
const Layout* before_leaving(const Layout* layout, c10::ArrayRef<int64_t> shape) {
  if (!layout->has_partial()) return layout;
  auto placements = layout->placements();
  auto longest = std::max_element(shape.begin(), shape.end()) - shape.begin();
  for (auto& placement : placements) {
    if (is_partial(placement)) placement = shape.empty() ? Placement(Replicate()) : Placement(Shard(longest));
  }
  return layout->with(placements);
}

void check_one_group(const DeviceMesh& mesh) {
  TORCH_CHECK_NOT_IMPLEMENTED(mesh.group_count() == 1, "[redistribute] ", mesh.text(), " was cut out of another mesh and stands ",
                              "for ", mesh.group_count(), " groups of ranks, which hold tensors of their own. Between meshes, ",
                              "use ones that were made directly.");
}

}  // namespace

std::vector<at::Tensor> moved_to_meshes(const std::vector<at::Tensor>& tensors, const std::vector<const Layout*>& to) {
  at::NoGradGuard no_grad;
  std::vector<Passage> passages;
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto& tensor = tensors[i];
    auto* now = body_of(tensor).layout;
    check_one_group(now->mesh());
    check_one_group(to[i]->mesh());
    TORCH_CHECK_VALUE(&now->mesh().world() == &to[i]->mesh().world(), "[redistribute] ", now->mesh().text(), " and ",
                      to[i]->mesh().text(), " belong to different worlds. Use meshes of one world.");
    TORCH_CHECK_VALUE(now->mesh().device_type() == to[i]->mesh().device_type(), "[redistribute] ", now->mesh().text(), " and ",
                      to[i]->mesh().text(), " are of different devices. Move the tensor to the other device first.");
    auto* from = before_leaving(now, tensor.sizes());
    auto shards = from == now ? body_of(tensor).shards() : shards_in(tensor, from);
    passages.push_back({from, to[i], std::move(shards), c10::DimVector(tensor.sizes()), tensor.options().requires_grad(false)});
    for (auto& shard : passages.back().shards) shard = shard.contiguous();
  }
  auto carried = carry_between_meshes(passages);
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto sizes = tensors[i].sizes();
    auto strides = c10::contiguous_strides(sizes);
    result.push_back(wrap(std::move(carried[i]), to[i], sizes, strides, tensors[i].dtype()));
  }
  return result;
}

}  // namespace intarsia
