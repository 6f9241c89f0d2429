#pragma once
// Puts kernels behind LibTorch's ops.

#include <ATen/core/dispatch/Dispatcher.h>

namespace intarsia {

// Puts the kernel behind all of ATen, those that families bring above it, and the fallback behind other libraries.
// Once: see start.h.
void register_dispatch();

// Puts the kernel behind an op of another library that has a rule. Without, a kernel that such an op brings for all
// devices would come before the fallback, and the rule would not count. Idempotent.
void register_ruled(const c10::OperatorHandle& handle);

}  // namespace intarsia
