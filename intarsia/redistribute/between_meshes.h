#pragma once
// Carries tensors from one mesh to another: everything in one exchange, and each pair of ranks in one message.

#include <vector>

#include <c10/core/TensorOptions.h>
#include <c10/util/DimVector.h>

#include "intarsia/core/layout.h"
#include "intarsia/core/shards.h"

namespace intarsia {

// A tensor on its way.
struct Passage {
  const Layout* from;  // nothing pending
  const Layout* to;    // on a mesh of the same world
  Shards shards;       // of the slots of from->mesh()
  c10::DimVector shape;
  at::TensorOptions options;
};

// The shards of the slots of to->mesh(), in memory of their own. All ranks of all meshes call it together, with the same list.
std::vector<Shards> carry_between_meshes(const std::vector<Passage>& passages);

}  // namespace intarsia
