#pragma once
// Redistributes tensors to other meshes, below autograd.

#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/core/layout.h"

namespace intarsia {

// The tensors in the layouts `to`, one each, in new memory. All ranks of all meshes call it together. Everything that
// has to travel between meshes travels in one exchange; what is pending is reduced on its own mesh before.
//
// Note [Groups between meshes]
// A tensor on a mesh that was cut out of another one (mesh["tp"]) is one tensor per group. The receiver has to know
// which: a group of the new mesh gets that of the group in which all of its ranks are. From a mesh with one group,
// every group gets the same. A group whose ranks are in several, or in none, is an error: it is not said whose tensor
// it wants. So two groups may get their tensors from one: the gradients of these are added up, and a group from which
// nothing was taken has zeros.
std::vector<at::Tensor> moved_to_meshes(const std::vector<at::Tensor>& tensors, const std::vector<const Layout*>& to);

// The gradient of such a move, back on the mesh that the tensor came from.
at::Tensor gradient_to_mesh(const at::Tensor& grad, const Layout* to);

}  // namespace intarsia
