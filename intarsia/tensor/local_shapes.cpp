#include "intarsia/tensor/local_shapes.h"

#include <ATen/ATen.h>

#include "intarsia/comm/axis.h"
#include "intarsia/comm/trace.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/strides.h"

namespace intarsia {
namespace {

// The global shape if every shard is as large as this one.
std::vector<int64_t> even_shape(const at::Tensor& local, const Layout& layout) {
  auto shape = value_at(local, 0).sizes().vec();
  for (size_t axis = 0; axis < layout.placements().size(); ++axis) {
    auto dim = cut_dim(layout.placements()[axis]);
    if (dim >= 0) shape[dim] *= layout.mesh().shape()[axis];
  }
  return shape;
}

// The global shape if the shards' true extents add up along the axes that shard a dim, with the last axis innermost.
std::vector<int64_t> summed_shape(const at::Tensor& local, const Layout& layout) {
  auto& mesh = layout.mesh();
  Shards extents;
  for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
    extents.push_back(at::tensor(value_at(local, slot).sizes(), at::kLong));
  }
  for (int64_t axis = mesh.ndim(); axis-- > 0;) {
    auto dim = cut_dim(layout.placements()[axis]);
    if (dim < 0) continue;
    auto sums = Axis::of(mesh, axis).all_reduce(extents, ReduceOp::sum);
    for (size_t slot = 0; slot < extents.size(); ++slot) extents[slot][dim] = sums[slot][dim];
  }
  auto& first = extents[0];
  return {first.data_ptr<int64_t>(), first.data_ptr<int64_t>() + first.numel()};
}

void check_local_shapes(const at::Tensor& local, const Layout& layout, at::IntArrayRef shape) {
  for (size_t slot = 0; slot < layout.mesh().slots().size(); ++slot) {
    auto& place = layout.mesh().slots()[slot];
    auto expected = local_shape(layout, shape, place.coordinate);
    auto actual = value_at(local, slot).sizes();
    TORCH_CHECK_VALUE(actual == at::IntArrayRef(expected), "[from_local] rank ", place.rank, " holds a shard of shape ",
                      actual, ", but ", str(layout), " of a tensor of shape ", shape, " needs ",
                      at::IntArrayRef(expected),
                      ". Shards are cut as torch.chunk cuts; pass the global shape, or set run_check.");
  }
}

// Checks that the ranks agree on what a shard is: its number of dims, its dtype, and whether it needs a gradient.
void check_same_kind(const at::Tensor& local, const Layout& layout) {
  auto& everyone = Axis::whole(layout.mesh());
  auto own =
      at::tensor({local.dim(), static_cast<int64_t>(local.scalar_type()), int64_t(local.requires_grad())}, at::kLong);
  Shards kinds(everyone.slot_count(), at::stack({own, -own}));
  auto most = everyone.all_reduce(kinds, ReduceOp::max)[0];
  auto upper = most[0], lower = -most[1];
  auto number = [](const at::Tensor& numbers, int64_t i) { return numbers[i].item<int64_t>(); };
  TORCH_CHECK_VALUE(number(lower, 0) == number(upper, 0), "[from_local] the ranks of ", layout.mesh().text(),
                    " hold tensors of ", number(lower, 0), " to ", number(upper, 0),
                    " dims. All shards need the same number.");
  TORCH_CHECK_VALUE(number(lower, 1) == number(upper, 1), "[from_local] the ranks of ", layout.mesh().text(),
                    " hold tensors of different dtypes; this one's is ", local.scalar_type(),
                    ". All shards need the same.");
  TORCH_CHECK_VALUE(number(lower, 2) == number(upper, 2), "[from_local] some ranks of ", layout.mesh().text(),
                    " hold a tensor that requires grad and some one that does not. All or none must.");
}

// Replaces shape and strides by those that the mesh's first rank has inferred, for all to compare theirs with.
void take_first(FittedLocal& fitted, const Layout& layout) {
  auto& everyone = Axis::whole(layout.mesh());
  auto dims = fitted.shape.size();
  Shards numbers;
  for (size_t slot = 0; slot < everyone.slot_count(); ++slot) {
    numbers.push_back(at::cat({at::tensor(fitted.shape, at::kLong), at::tensor(fitted.stride, at::kLong)}));
  }
  everyone.broadcast(numbers, 0);
  auto* first = numbers[0].data_ptr<int64_t>();
  fitted.shape.assign(first, first + dims);
  fitted.stride.assign(first + dims, first + 2 * dims);
}

// With run_check, all ranks raise an error if a shard does not fit, so that none waits for one that has stopped.
void check_on_all_ranks(const at::Tensor& local, const Layout& layout, at::IntArrayRef shape) {
  auto& mesh = layout.mesh();
  Shards verdicts;
  for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
    auto expected = local_shape(layout, shape, mesh.slots()[slot].coordinate);
    verdicts.push_back(at::scalar_tensor(value_at(local, slot).sizes() == at::IntArrayRef(expected), at::kLong));
  }
  auto agreed = Axis::whole(mesh).all_reduce(verdicts, ReduceOp::min);
  if (agreed[0].item<int64_t>() == 1) return;
  check_local_shapes(local, layout, shape);  // the rank at fault says what is wrong with its shard
  TORCH_CHECK_VALUE(false, "[from_local] a shard on another rank does not fit ", str(layout), " of a tensor of shape ",
                    shape, ". See the errors of the other ranks.");
}

// Along an axis that replicates, all ranks take the values of the first.
at::Tensor equal_replicas(const at::Tensor& local, const Layout& layout) {
  auto& mesh = layout.mesh();
  Shards values;
  for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
    values.push_back(value_at(local, slot).clone(at::MemoryFormat::Contiguous));
  }
  bool any = false;
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    if (!is_replicate(layout.placements()[axis])) continue;
    Axis::of(mesh, axis).broadcast(values, 0);
    any = true;
  }
  if (!any) return local;
  return values.size() == 1 && !is_per_rank(local) ? values[0] : per_rank(values);
}

}  // namespace

FittedLocal fit_local_shapes(const at::Tensor& local, const Layout* layout, const FromLocalOptions& options) {
  TORCH_CHECK_VALUE(!options.stride || options.shape, "[from_local] stride is given without shape. Give both or none.");
  CauseScope cause("from_local", false);
  bool on_mesh = !layout->mesh().slots().empty();
  if (on_mesh && options.run_check) check_same_kind(local, *layout);
  FittedLocal fitted{local, {}, {}};
  auto& shape = fitted.shape;
  shape = options.shape                  ? *options.shape
          : on_mesh && options.run_check ? summed_shape(local, *layout)
                                         : even_shape(local, *layout);
  auto check_dims = [&](const char* what, const std::vector<int64_t>& numbers) {
    TORCH_CHECK_VALUE(static_cast<int64_t>(numbers.size()) == local.dim(), "[from_local] the ", what, " ",
                      at::IntArrayRef(numbers), " has ", numbers.size(), " dims, but the local tensor has ",
                      local.dim(), ". Their numbers must be equal.");
  };
  check_dims("shape", shape);
  fitted.stride = options.stride ? *options.stride : strides_around(value_at(local, 0), shape);
  check_dims("stride", fitted.stride);
  if (!on_mesh) return fitted;
  if (!options.run_check) {
    check_local_shapes(local, *layout, shape);
    return fitted;
  }
  take_first(fitted, *layout);
  check_on_all_ranks(local, *layout, shape);
  // Autograd passes through: the values are the caller's wherever the ranks agree.
  if (!local.requires_grad()) fitted.local = equal_replicas(local, *layout);
  return fitted;
}

}  // namespace intarsia
