#pragma once
// What ops along a cut dim are made of: an exact exchange of positions, and a gathering of small pieces.

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/comm/axis.h"
#include "intarsia/core/held.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {

// Where an element of a result comes from: a position along the cut dim of one of the tensors, or nowhere: zero.
struct Source {
  int64_t tensor = -1;
  int64_t position = 0;
};

// Who gives which positions to whom. It follows from forms and layouts alone, so a way makes it once and keeps it.
struct RecutSteps;
using RecutPlan = std::shared_ptr<const RecutSteps>;

// For a tensor whose position j along `dim` is sources[j] of some tensors, all in `layout`, which cuts `dim`. They have
// `extents` along that dim, and `shape` apart from it.
RecutPlan plan_recut(const Layout& layout, at::IntArrayRef shape, int64_t dim, const std::vector<int64_t>& extents,
                     const std::vector<Source>& sources);
// The same for one tensor of that shape.
RecutPlan plan_recut(const Layout& layout, at::IntArrayRef shape, int64_t dim, const std::vector<Source>& sources);

// That tensor. The given ones lie as planned and have one dtype; the result lies in the same layout. One all-to-all: an
// element travels only if another rank needs it, and none does if nobody needs any.
at::Tensor recut(const RecutPlan& plan, const std::vector<at::Tensor>& tensors);

// Both at once, for sources that are known only when the op runs.
at::Tensor recut(const std::vector<at::Tensor>& tensors, int64_t dim, const std::vector<Source>& sources);

// Per slot: the pieces of all members of a line, joined along `dim`. extents[member] is the extent of its piece.
Shards gather_along(const Axis& axis, const Shards& pieces, int64_t dim, const std::vector<int64_t>& extents);

// The layout with the axes that cut `dim` replicated, and with the dim gone if `removed`.
const Layout* without_cut(const Layout& layout, int64_t dim, bool removed);

// The tensor in another layout; itself if it lies there already.
at::Tensor brought_to(const at::Tensor& tensor, const Layout* layout);

}  // namespace intarsia
