#pragma once
// A tensor that is sharded along a dim in consecutive runs, rank after rank. Lowerings of scans and searches along that
// dim are planned with it.

#include <memory>
#include <vector>

#include "intarsia/comm/axis.h"
#include "intarsia/rules/lowering.h"

namespace intarsia {

struct CutLine {
  int64_t dim;
  const Layout* layout;
  const Axis* axis;                      // the axes that shard the dim, as one
  std::vector<int64_t> sizes;            // of the whole
  std::vector<int64_t> extents, begins;  // along the dim, per member

  int64_t begin(size_t slot) const { return begins[axis->position(slot)]; }
  int64_t extent(size_t slot) const { return extents[axis->position(slot)]; }
};
using CutLinePtr = std::shared_ptr<const CutLine>;

// For the first tensor. Null if the rows apply: another dim is meant, something is pending, or the parts are strided.
CutLinePtr cut_line(const CutCall& call, int64_t dim);

// How many positions each member contributes, given how many it holds.
std::vector<int64_t> at_most(const std::vector<int64_t>& extents, int64_t count);

// A distributed tensor that is contiguous.
at::Tensor wrap_contiguous(Shards shards, const Layout* layout, at::IntArrayRef sizes, at::ScalarType dtype);

}  // namespace intarsia
