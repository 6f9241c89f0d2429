#pragma once
// Building blocks of ops along a sharded dim: recut exchanges single positions of it, gather_along gathers small
// pieces.

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/comm/axis.h"
#include "intarsia/core/held.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {

// Where an element of a result comes from: a position along the sharded dim of one of the tensors, or nowhere: zero.
struct Source {
  int64_t tensor = -1;
  int64_t position = 0;
};

// Which rank sends which positions to which rank. It follows from forms and layouts alone, so a lowering computes it
// once and keeps it.
struct RecutSteps;
using RecutPlan = std::shared_ptr<const RecutSteps>;

// For a tensor whose position j along `dim` is sources[j] of some tensors, all in `layout`, which shards `dim`. They
// have `extents` along that dim, and otherwise the shape `shape`.
RecutPlan plan_recut(const Layout& layout, at::IntArrayRef shape, int64_t dim, const std::vector<int64_t>& extents,
                     const std::vector<Source>& sources);
// The same for one tensor of that shape.
RecutPlan plan_recut(const Layout& layout, at::IntArrayRef shape, int64_t dim, const std::vector<Source>& sources);

// That tensor. The given ones have the planned layout and one dtype; the result has the same layout. One all-to-all: an
// element is sent only if another rank needs it, and there is no collective if no rank needs any.
at::Tensor recut(const RecutPlan& plan, const std::vector<at::Tensor>& tensors);

// Both steps, for sources that are known only when the op runs.
at::Tensor recut(const std::vector<at::Tensor>& tensors, int64_t dim, const std::vector<Source>& sources);

// Per slot: the pieces of all members of its line, concatenated along `dim`. extents[member] is the extent of its
// piece.
Shards gather_along(const Axis& axis, const Shards& pieces, int64_t dim, const std::vector<int64_t>& extents);

// The layout with the axes that shard `dim` replicated, and with the dim removed if `removed`.
const Layout* without_cut(const Layout& layout, int64_t dim, bool removed);

// The tensor in another layout; itself if it has that layout.
at::Tensor brought_to(const at::Tensor& tensor, const Layout* layout);

}  // namespace intarsia
