#pragma once
// One mesh for tensors on several meshes: its groups have to agree on what is computed from all of them.

#include <vector>

#include "intarsia/core/mesh.h"

namespace intarsia {

// The mesh whose groups contain the groups of all others: one of the given ones if possible, else a mesh of one axis.
// For "dp" and "tp" of a 2x2 mesh it has all four ranks; for "dp" and ("dp", "tp") it is the second. An error that
// names `op` if they belong to different worlds, or if ranks that have to agree come in groups of different sizes.
DeviceMesh joint_mesh(const std::vector<DeviceMesh>& meshes, const char* op);

}  // namespace intarsia
