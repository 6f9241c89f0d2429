#pragma once
// Meshes composed of the axes of others, which data parallelism needs in addition to the program's meshes.

#include <string>
#include <vector>

#include "intarsia/core/mesh.h"

namespace intarsia {

using AxisList = std::vector<int64_t>;

// Each list of axes of the mesh, as one, becomes an axis, in this order. Axes in no list number groups.
DeviceMesh regrouped(const DeviceMesh& mesh, const std::vector<AxisList>& lists);

// The mesh for data parallelism along some axes of a larger mesh: copies along the first list, as one axis, shards
// along the second. Either may be empty.
DeviceMesh data_mesh(const DeviceMesh& full, const std::vector<std::string>& replicate,
                     const std::vector<std::string>& shard);

// All axes of `outer`, and then those of `inner`: slices of one mesh, otherwise an error about the parameter `name`.
DeviceMesh joined_mesh(const std::string& name, const DeviceMesh& outer, const DeviceMesh& inner);

}  // namespace intarsia
