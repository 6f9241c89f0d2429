#pragma once
// The mesh of a parameter of fully_shard that is tensor-parallel already.

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "intarsia/core/mesh.h"

namespace intarsia {

// Of `leaf`, which is cut over a mesh of one axis, and then over `outer`, along `dim`: see Note [Cut twice].
DeviceMesh joined_mesh(const std::string& name, const DeviceMesh& outer, const at::Tensor& leaf, std::optional<int64_t> dim);

}  // namespace intarsia
