#pragma once
// Which mesh axes cut a tensor dim.

#include <cstdint>
#include <vector>

#include "intarsia/core/layout.h"

namespace intarsia {

// The axes that cut `dim`, in the order in which they cut it.
std::vector<int64_t> axes_cutting(const Layout& layout, int64_t dim);

}  // namespace intarsia
