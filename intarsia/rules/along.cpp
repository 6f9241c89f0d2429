#include "intarsia/rules/along.h"

#include <algorithm>

#include "intarsia/core/cut_axes.h"

namespace intarsia {

bool CutCall::cuts(size_t i, int64_t dim) const { return now[i] && !axes_cutting(*now[i], dim).empty(); }

bool CutCall::cuts(size_t i, const std::vector<int64_t>& dims) const {
  return std::any_of(dims.begin(), dims.end(), [&](auto dim) { return cuts(i, dim); });
}

bool CutCall::on_one_mesh() const {
  const DeviceMesh* mesh = nullptr;
  for (size_t i = 0; i < now.size(); ++i) {
    if (!call.inputs[i].defined) continue;
    if (!now[i] || (mesh && *mesh != now[i]->mesh())) return false;
    mesh = &now[i]->mesh();
  }
  return mesh != nullptr;
}

}  // namespace intarsia
