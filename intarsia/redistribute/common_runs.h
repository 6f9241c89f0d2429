#pragma once
// The positions of a tensor that two shards have in common, in the local coordinates of both.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/core/layout.h"

namespace intarsia {

// `size` positions, at `source` in one shard and at `target` in the other.
struct Run {
  int64_t source, target, size;
};
using Runs = c10::SmallVector<Run, 2>;

// The common positions of one dim. Shards hold ascending positions, so the runs ascend in both.
Runs common_runs(const Intervals& source, const Intervals& target);

// The common positions of every dim; empty if the shards share nothing.
std::vector<Runs> common_runs(const Layout& from, c10::ArrayRef<int64_t> from_coordinate, const Layout& to,
                              c10::ArrayRef<int64_t> to_coordinate, c10::ArrayRef<int64_t> shape);

// The shape of the piece that consists of these positions, and its number of elements.
c10::SmallVector<int64_t, 5> shape_of(const std::vector<Runs>& common);
int64_t count_of(const std::vector<Runs>& common);

// The elements of a source tensor at the runs, dim by dim. A view where possible.
at::Tensor extract(at::Tensor tensor, c10::ArrayRef<Runs> runs);

// Copies the elements of `piece` to the runs' positions in `target`, from dim `dim` on.
void place(const at::Tensor& target, const at::Tensor& piece, c10::ArrayRef<Runs> runs, int64_t dim = 0);

// Whether the elements of a piece are contiguous in a target of this shape, from `offset` on.
bool stands_flat(c10::ArrayRef<Runs> piece, c10::ArrayRef<int64_t> target, int64_t offset);

}  // namespace intarsia
