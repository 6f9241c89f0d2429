#pragma once
// Tensors that are Partial on several mesh axes at once.

#include "intarsia/core/placement.h"

namespace intarsia {

// Whether the pending reductions give the same value in whatever order they run. The max of sums is not the sum of the
// maxima; only sums and averages mix.
bool have_one_value(const Placements& placements);

}  // namespace intarsia
