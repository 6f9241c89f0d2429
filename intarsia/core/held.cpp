#include "intarsia/core/held.h"

#include <c10/util/Exception.h>

namespace intarsia {

std::vector<Intervals> held_by_members(const Layout& layout, int64_t dim, int64_t size, c10::ArrayRef<int64_t> axes,
                                       c10::ArrayRef<int64_t> coordinate) {
  auto& mesh = layout.mesh();
  int64_t members = 1;
  for (auto axis : axes) members *= mesh.size(axis);
  std::vector<Intervals> held;
  held.reserve(members);
  auto place = coordinate.vec();
  for (int64_t member = 0; member < members; ++member) {
    auto rest = member;
    for (size_t k = axes.size(); k-- > 0;) {
      place[axes[k]] = rest % mesh.size(axes[k]);
      rest /= mesh.size(axes[k]);
    }
    held.push_back(intervals_of(layout, dim, size, place));
  }
  return held;
}

std::vector<Interval> held_along(const Layout& layout, int64_t dim, int64_t size) {
  std::vector<Interval> held;
  for (auto& runs : held_by_members(layout, dim, size)) {
    TORCH_INTERNAL_ASSERT(runs.size() <= 1, "a strided shard holds no single run of positions");
    held.push_back(runs.empty() ? Interval{size, size} : runs[0]);
  }
  return held;
}

}  // namespace intarsia
