#pragma once
// reduce() on plain memory: the same values, without creating tensors where possible.

#include <cstdint>

#include <c10/core/ScalarType.h>

#include "intarsia/core/placement.h"

namespace intarsia {

// out = op(a, b) over `bytes` of elements. `out` may be `a`.
void reduce_memory(char* out, const char* a, const char* b, uint64_t bytes, c10::ScalarType type, ReduceOp op);

}  // namespace intarsia
