#pragma once
// A distributed tensor from a whole one by way of the dealer: any placements, Partial too, on simulated and real ranks.

#include "intarsia/per_rank/per_rank.h"
#include "intarsia/tensor/dtensor.h"
#include "tests/support/dealer.h"

namespace intarsia {

// The whole must be the same on every rank. With `jumbled`, the local tensors are not contiguous.
inline at::Tensor lay_out(const at::Tensor& whole, const DeviceMesh& mesh, const Placements& placements,
                          bool jumbled = false) {
  auto pieces = deal_out(whole, placements, mesh.shape().vec());
  Shards mine;
  for (auto& slot : mesh.slots()) {
    int64_t index = 0;
    for (int64_t axis = 0; axis < mesh.ndim(); ++axis) index = index * mesh.size(axis) + slot.coordinate[axis];
    auto piece = pieces[index].contiguous();
    if (jumbled && piece.dim() > 1) piece = piece.transpose(0, -1).contiguous().transpose(0, -1);
    mine.push_back(piece);
  }
  FromLocalOptions options;
  options.shape = whole.sizes().vec();
  options.stride = whole.strides().vec();
  return from_local(mine.size() == 1 ? mine[0] : per_rank(mine), mesh, placements, options).detach();
}

}  // namespace intarsia
