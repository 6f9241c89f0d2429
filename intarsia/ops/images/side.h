#pragma once
// One dim of an image under a sliding window, on every rank: which positions it holds, which it needs, which are
// padding.

#include <ATen/core/Tensor.h>

#include "intarsia/core/shards.h"
#include "intarsia/ops/images/window.h"

namespace intarsia {

// A dim that is not sharded has a line of one member.
struct Side {
  int64_t dim, size;
  Window window;
  const Axis& axis;
  std::vector<Interval> outputs;  // per member of the line
  RowPlan plan;

  Interval output(size_t slot) const { return outputs[axis.position(slot)]; }
  Interval wanted(size_t slot) const { return read_by(window, output(slot)); }  // may extend beyond the image
  Interval needed(size_t slot) const { return plan.needed[axis.position(slot)]; }
};
using Sides = std::vector<Side>;

// `input_layout` and `output_layout` shard the dim over the same axes.
Side make_side(int64_t dim, const Window& window, const Layout& input_layout, int64_t input_size,
               const Layout& output_layout, int64_t output_size);

Shards fetch(Shards shards, const Sides& sides);       // the needed rows of all sides
Shards give_back(Shards fetched, const Sides& sides);  // the adjoint of fetch

// Extends the fetched rows to the wanted ones, filled with `value`; and the reverse.
at::Tensor pad_to_wanted(const at::Tensor& fetched, const Sides& sides, size_t slot, const c10::Scalar& value);
at::Tensor crop_to_needed(const at::Tensor& wanted, const Sides& sides, size_t slot);

}  // namespace intarsia
