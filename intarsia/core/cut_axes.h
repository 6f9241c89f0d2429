#pragma once
// Which mesh axes shard a tensor dim.

#include <cstdint>
#include <vector>

#include "intarsia/core/layout.h"

namespace intarsia {

// The mesh axes that shard `dim`, in the order in which they split it.
std::vector<int64_t> axes_cutting(const Layout& layout, int64_t dim);

}  // namespace intarsia
