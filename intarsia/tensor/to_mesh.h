#pragma once
// Redistributes tensors to other meshes, below autograd.

#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/core/layout.h"

namespace intarsia {

// The tensors in the layouts `to`, one each, in new memory. All ranks of all meshes call it together. Everything is
// sent in one exchange; pending reductions run before, on the tensor's own mesh.
//
// Note [Groups between meshes]
// A tensor on a sliced mesh (mesh["tp"]) is one tensor per group, so the receiver must know which one it gets: a group
// of the new mesh gets that of the group which contains all of its ranks. From a mesh with one group, every group gets
// the same. A group whose ranks are in several groups, or in none, is an error, since no rule says whose tensor it
// gets. So two groups may get their tensors from one: their gradients are added up, and a group whose tensor nobody got
// has zeros.
std::vector<at::Tensor> moved_to_meshes(const std::vector<at::Tensor>& tensors, const std::vector<const Layout*>& to);

// The gradient of such a move, back on the mesh that the tensor came from.
at::Tensor gradient_to_mesh(const at::Tensor& grad, const Layout* to);

}  // namespace intarsia
