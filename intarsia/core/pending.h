#pragma once
// Tensors that are Partial on several mesh axes at once.

#include "intarsia/core/placement.h"

namespace intarsia {

// Whether they give one value in whatever order they are carried out. The largest of sums is not the sum of the
// largest; only sums and averages mix.
bool have_one_value(const Placements& placements);

}  // namespace intarsia
