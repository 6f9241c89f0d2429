#pragma once
// What ops along a cut dim are made of: an exact exchange of positions, and a gathering of small pieces.

#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/core/cut_axes.h"
#include "intarsia/comm/axis.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {


// The positions of `dim` that each member of those axes (read as one) holds, in local order.
std::vector<Intervals> held_by_members(const Layout& layout, int64_t dim, int64_t size);

// Where an element of a result comes from: a position along the cut dim of one of the tensors, or nowhere: zero.
struct Source {
  int64_t tensor = -1;
  int64_t position = 0;
};

// A tensor whose position j along `dim` is sources[j] of the given ones. They all lie in one layout, which cuts `dim`,
// have one dtype and, apart from `dim`, one shape; the result lies in that layout, too. One all-to-all: an element
// travels only if another rank needs it, and none does if nobody needs any.
at::Tensor recut(const std::vector<at::Tensor>& tensors, int64_t dim, const std::vector<Source>& sources);

// Per slot: the pieces of all members of a line, joined along `dim`. extents[member] is the extent of its piece.
Shards gather_along(const Axis& axis, const Shards& pieces, int64_t dim, const std::vector<int64_t>& extents);

// The layout with those axes replicated, and with the dim gone if `removed`.
const Layout* without_cut(const Layout& layout, int64_t dim, bool removed);

// The tensor in another layout; itself if it lies there already.
at::Tensor brought_to(const at::Tensor& tensor, const Layout* layout);

}  // namespace intarsia
