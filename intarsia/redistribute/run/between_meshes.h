#pragma once
// Moves tensors from one mesh to another, all in one exchange, with one message per pair of ranks.

#include <vector>

#include <c10/core/TensorOptions.h>
#include <c10/util/DimVector.h>

#include "intarsia/core/layout.h"
#include "intarsia/core/shards.h"

namespace intarsia {

// Groups of two meshes (see Note [Groups of a mesh]): the first sends its tensor to the second.
struct GroupPair {
  int64_t from, to;
};

// A tensor and the meshes between which it moves.
struct Passage {
  const Layout* from;  // nothing pending
  const Layout* to;    // on a mesh of the same world
  std::vector<GroupPair> groups;
  Shards shards;  // of the slots of from->mesh()
  c10::DimVector shape;
  at::TensorOptions options;
};

// The shards of the slots of to->mesh(), in new memory; zeros in groups that receive nothing. All ranks of all meshes
// call it together, with the same list.
std::vector<Shards> carry_between_meshes(const std::vector<Passage>& passages);

}  // namespace intarsia
