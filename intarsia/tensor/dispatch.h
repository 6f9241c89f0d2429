#pragma once
// The one kernel behind every op on distributed tensors: unwrap, choose, redistribute, call, wrap.

namespace intarsia {

// Puts the kernel behind all of ATen and the fallback behind other libraries. Idempotent; called when the first
// distributed tensor or mesh is made.
void register_dispatch();

}  // namespace intarsia
