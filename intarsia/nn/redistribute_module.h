#pragma once
// Redistributes a whole module, or a dict of tensors, to another mesh in one exchange.

#include <functional>
#include <string>
#include <vector>

#include "intarsia/core/mesh.h"
#include "intarsia/core/placement.h"
#include "intarsia/nn/module_ref.h"
#include "intarsia/nn/state_dict.h"

namespace intarsia {

// The placements of the tensor `name` on the new mesh.
using PlacementPlan = std::function<Placements(const std::string& name, const at::Tensor& tensor)>;

// The tensors on `mesh`, one list of placements each, in one exchange; below autograd.
std::vector<at::Tensor> redistribute(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                     const std::vector<Placements>& placements);

// Redistributes all distributed parameters and buffers, with their gradients, to `mesh`, in place: each keeps its
// handle. Plain ones stay. All ranks of the old meshes and of the new one call it. If anything fails, the module is as
// it was.
void redistribute(ModuleRef module, const DeviceMesh& mesh, const PlacementPlan& plan);

// The same for tensors by name, such as the state of an optimizer: returns the redistributed ones, plain ones as they
// are.
StateDict redistribute(const StateDict& state, const DeviceMesh& mesh, const PlacementPlan& plan);

}  // namespace intarsia
