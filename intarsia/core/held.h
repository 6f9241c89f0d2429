#pragma once
// The positions of a tensor dim that each rank along an axis holds.

#include "intarsia/core/cut_axes.h"

namespace intarsia {

// The positions of `dim` (of global extent `size`) that each member of the line through `coordinate` along `axes`
// holds, in local order. Several axes act as one, row-major.
std::vector<Intervals> held_by_members(const Layout& layout, int64_t dim, int64_t size, c10::ArrayRef<int64_t> axes,
                                       c10::ArrayRef<int64_t> coordinate);

// The same along the axes that shard `dim`. The other axes do not affect it, so the result is the same on all of their
// lines.
inline std::vector<Intervals> held_by_members(const Layout& layout, int64_t dim, int64_t size) {
  return held_by_members(layout, dim, size, axes_cutting(layout, dim), std::vector<int64_t>(layout.mesh().ndim(), 0));
}

// The same for plain shards, where each member holds one run: [size, size) if it holds nothing.
std::vector<Interval> held_along(const Layout& layout, int64_t dim, int64_t size);

}  // namespace intarsia
