#include "intarsia/ops/indexing/held.h"

#include "intarsia/core/cut_axes.h"

namespace intarsia {

int64_t indexed_dim(const OpCall& call) {
  auto ndim = call.inputs[0].dim();
  return ndim ? call.dim_arg("dim", ndim) : 0;
}

bool cuts_dim(const Layout& layout, int64_t dim) { return !axes_cutting(layout, dim).empty(); }

Interval held_places(const LocalCall& local, int64_t dim) {
  auto runs = intervals_of(*local.in[0], dim, local.call.inputs[0].sizes[dim], local.slot.coordinate);
  return runs.empty() ? Interval{0, 0} : runs[0];
}

}  // namespace intarsia
