#pragma once
// Distributed tensors on their way to other meshes, below autograd.

#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/core/layout.h"

namespace intarsia {

// The tensors in the layouts `to`, one each, in memory of their own. All ranks of all meshes call it together.
// Everything that has to travel between meshes travels in one exchange; what is pending is reduced on its own mesh before.
std::vector<at::Tensor> moved_to_meshes(const std::vector<at::Tensor>& tensors, const std::vector<const Layout*>& to);

}  // namespace intarsia
