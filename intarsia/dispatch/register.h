#pragma once
// Registers the kernels of distributed tensors for LibTorch's ops.

#include <ATen/core/dispatch/Dispatcher.h>

namespace intarsia {

// Registers the kernel of dispatch for all of ATen, the kernels that families add above it, and the fallback for other
// libraries. Called once: see start.h.
void register_dispatch();

// Registers the kernel for an op of another library that has a rule. Otherwise a kernel that such an op has for all
// devices would precede the fallback, and the rule would never apply. Idempotent.
void register_ruled(const c10::OperatorHandle& handle);

}  // namespace intarsia
