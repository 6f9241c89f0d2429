#pragma once
// Kernels that take their arguments as C++ passes them.

#include <string>

#include <torch/library.h>

namespace intarsia {

// Whether the op has a kernel here; see Note [Typed kernels].
bool has_typed_kernel(const std::string& op);

void register_typed(torch::Library& library);

}  // namespace intarsia
