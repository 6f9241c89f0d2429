#include "intarsia/core/cut_axes.h"

namespace intarsia {

std::vector<int64_t> axes_cutting(const Layout& layout, int64_t dim) {
  std::vector<int64_t> axes;
  for (size_t axis = 0; axis < layout.placements().size(); ++axis) {
    if (cut_dim(layout.placements()[axis]) == dim) axes.push_back(axis);
  }
  return axes;
}

}  // namespace intarsia
