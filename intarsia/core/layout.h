#pragma once
// A layout is a mesh and one placement per axis: how a tensor is distributed over the ranks. Local shapes follow from
// it.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include "intarsia/core/mesh.h"
#include "intarsia/core/placement.h"

namespace intarsia {

// Equal layouts are one object that lives until the process ends, so a layout is compared by its address.
class Layout {
 public:
  // The layout of `placements` (dims not negative) on `mesh`.
  static const Layout* get(const DeviceMesh& mesh, const Placements& placements);
  static const Layout* replicated(const DeviceMesh& mesh);

  const DeviceMesh& mesh() const { return mesh_; }
  const Placements& placements() const { return placements_; }
  bool is_replicated() const { return replicated_; }  // Replicate on every axis
  bool has_partial() const { return partial_; }
  const Layout* with(const Placements& placements) const { return get(mesh_, placements); }

 private:
  Layout(const DeviceMesh& mesh, const Placements& placements);
  DeviceMesh mesh_;
  Placements placements_;
  bool replicated_ = true, partial_ = false;
};

std::string str(const Layout& layout);  // [S(0), R] on DeviceMesh(cpu, dp=2, tp=4)

// A half-open run of positions of one tensor dim.
struct Interval {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
  bool operator==(const Interval&) const = default;
};
using Intervals = c10::SmallVector<Interval, 2>;

// The intersection of two runs; an empty run if they do not overlap.
inline Interval overlap(Interval a, Interval b) {
  auto begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

int64_t extent_of(const Intervals& intervals);  // the number of positions

// Part `index` of `parts` of [0, size), split as torch.chunk splits: 5 over 4 is 2, 2, 1, 0.
Interval chunk_of(int64_t size, int64_t parts, int64_t index);

// The positions of `held` that part `index` of `parts` keeps when the placement (Shard or StridedShard) splits them.
Intervals cut_once(const Intervals& held, const Placement& placement, int64_t parts, int64_t index);

// The positions of dim `dim` (of global extent `size`) that the rank at `coordinate` holds, ascending, as they are
// stored. If several axes shard the dim, the first axis splits it first, and each further axis splits what is left.
Intervals intervals_of(const Layout& layout, int64_t dim, int64_t size, c10::ArrayRef<int64_t> coordinate);

// `shape` with `size` as the extent of `dim`.
c10::SmallVector<int64_t, 5> with_size(c10::ArrayRef<int64_t> shape, int64_t dim, int64_t size);

// The shape of the shard at `coordinate` of a tensor of global shape `shape`.
c10::SmallVector<int64_t, 5> local_shape(const Layout& layout, c10::ArrayRef<int64_t> shape,
                                         c10::ArrayRef<int64_t> coordinate);

// Where that shard begins in each dim (the first position held; the global extent if it holds none).
c10::SmallVector<int64_t, 5> local_offset(const Layout& layout, c10::ArrayRef<int64_t> shape,
                                          c10::ArrayRef<int64_t> coordinate);

}  // namespace intarsia
