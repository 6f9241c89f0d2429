#pragma once
// The one kernel behind every op on distributed tensors: unwrap, choose, redistribute, call, wrap.

#include <ATen/core/dispatch/Dispatcher.h>

namespace intarsia {

// Puts the kernel behind all of ATen and the fallback behind other libraries. Idempotent; called when the first
// distributed tensor or mesh is made.
void register_dispatch();

// Puts the kernel behind an op of another library that has a rule. Without, a kernel that such an op brings for all devices
// would come before the fallback, and the rule would not count. Idempotent.
void register_ruled(const c10::OperatorHandle& handle);

}  // namespace intarsia
