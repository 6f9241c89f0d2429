#include "intarsia/rules/lowering.h"

#include <algorithm>

#include "intarsia/core/cut_axes.h"

namespace intarsia {

bool CutCall::cuts(size_t i, int64_t dim) const { return now[i] && !axes_cutting(*now[i], dim).empty(); }

bool CutCall::cuts(size_t i, const std::vector<int64_t>& dims) const {
  return std::any_of(dims.begin(), dims.end(), [&](auto dim) { return cuts(i, dim); });
}

bool CutCall::share_a_mesh() const {
  const DeviceMesh* mesh = nullptr;
  for (auto* layout : now) {
    if (layout && mesh && *mesh != layout->mesh()) return false;
    if (layout) mesh = &layout->mesh();
  }
  return mesh != nullptr;
}

bool CutCall::on_one_mesh() const {
  for (size_t i = 0; i < now.size(); ++i) {
    if (call.inputs[i].defined && !now[i]) return false;
  }
  return share_a_mesh();
}

}  // namespace intarsia
