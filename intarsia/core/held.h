#pragma once
// Who on a line of ranks holds which positions of a tensor dim.

#include "intarsia/core/cut_axes.h"

namespace intarsia {

// The positions of `dim` (of global extent `size`) that each member of the line through `coordinate` along `axes` holds,
// in local order. Several axes are read as one.
std::vector<Intervals> held_by_members(const Layout& layout, int64_t dim, int64_t size, c10::ArrayRef<int64_t> axes,
                                       c10::ArrayRef<int64_t> coordinate);

// The same along the axes that cut `dim`. The others make no difference to it, so all those lines are alike.
inline std::vector<Intervals> held_by_members(const Layout& layout, int64_t dim, int64_t size) {
  return held_by_members(layout, dim, size, axes_cutting(layout, dim), std::vector<int64_t>(layout.mesh().ndim(), 0));
}

// The same where each member holds one run; [size, size) if it holds nothing. Plain shards only.
std::vector<Interval> held_along(const Layout& layout, int64_t dim, int64_t size);

}  // namespace intarsia
