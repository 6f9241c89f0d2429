#pragma once
// Prints distributed tensors: str() and operator<<.

#include <string>

#include <ATen/core/Tensor.h>

namespace intarsia {

// Shape, dtype, mesh, placements and the local values, as text. Also what operator<< prints.
std::string str(const at::Tensor& tensor);

}  // namespace intarsia
