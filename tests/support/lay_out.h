#pragma once
// A distributed tensor from a whole one by way of the dealer: any placements, Partial too, on simulated and real ranks.

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/dtensor.h"
#include "tests/support/dealer.h"

namespace intarsia {

// The values in memory in the order of `strides`. With gaps, only every second row of memory is used.
inline at::Tensor in_order_of(at::IntArrayRef strides, const at::Tensor& values, bool gaps = false) {
  auto dense = at::infer_dense_strides(values.sizes(), strides);
  for (auto& stride : dense) stride *= gaps && (stride > 1 || values.dim() == 1) ? 2 : 1;
  return at::empty_strided(values.sizes(), dense, values.options()).copy_(values);
}

// The whole must be the same on every rank. The local tensors lie in memory as it does; with gaps between rows if it
// has any.
inline at::Tensor lay_out(const at::Tensor& whole, const DeviceMesh& mesh, const Placements& placements) {
  auto pieces = deal_out(whole, placements, mesh.shape().vec());
  Shards mine;
  for (auto& slot : mesh.slots()) {
    int64_t index = 0;
    for (int64_t axis = 0; axis < mesh.ndim(); ++axis) index = index * mesh.size(axis) + slot.coordinate[axis];
    mine.push_back(in_order_of(whole.strides(), pieces[index], !whole.is_non_overlapping_and_dense()));
  }
  FromLocalOptions options;
  options.shape = whole.sizes().vec();
  options.stride = whole.strides().vec();
  return from_local(mine.size() == 1 ? mine[0] : per_rank(mine), mesh, placements, options).detach();
}

}  // namespace intarsia
