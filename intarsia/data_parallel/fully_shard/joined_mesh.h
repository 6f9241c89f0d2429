#pragma once
// Meshes made of the axes of others: what data parallelism needs beside the meshes that a program has made.

#include <string>
#include <vector>

#include "intarsia/core/mesh.h"

namespace intarsia {

using AxisList = std::vector<int64_t>;

// Each list of axes of the mesh, read as one, becomes an axis, in this order. Axes in no list number groups.
DeviceMesh regrouped(const DeviceMesh& mesh, const std::vector<AxisList>& lists);

// The mesh for data parallelism along some axes of a mesh of all: copies along the first list, read as one axis, shards
// along the second. Either may be empty.
DeviceMesh data_mesh(const DeviceMesh& full, const std::vector<std::string>& replicate,
                     const std::vector<std::string>& shard);

// All axes of `outer`, and then those of `inner`: slices of one mesh, else it is an error about the parameter `name`.
DeviceMesh joined_mesh(const std::string& name, const DeviceMesh& outer, const DeviceMesh& inner);

}  // namespace intarsia
