#include "intarsia/ops/indexing/held.h"

#include <c10/core/WrapDimMinimal.h>

#include "intarsia/core/cut_axes.h"

namespace intarsia {

int64_t indexed_dim(const OpCall& call) {
  auto ndim = call.inputs[0].dim();
  return ndim ? c10::maybe_wrap_dim(call.int_arg("dim", 0), ndim) : 0;
}

bool cuts_dim(const Layout& layout, int64_t dim) { return !axes_cutting(layout, dim).empty(); }

Interval held_places(const LocalCall& local, int64_t dim) {
  auto runs = intervals_of(*local.in[0], dim, local.call.inputs[0].sizes[dim], local.slot.coordinate);
  return runs.empty() ? Interval{0, 0} : runs[0];
}

}  // namespace intarsia
