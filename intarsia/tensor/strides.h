#pragma once
// The strides of shards: they follow those of the whole tensor.
//
// Note [Strides of the whole]
// The local tensors of a distributed tensor that owns its memory have the dim order of the global strides. Kernels look
// at the local strides and autograd's formulas at those of the whole, and some kernels rely on what a formula has
// ensured (the gradient of group_norm assumes a contiguous gradient and does not check). A dim that is expanded in the
// whole is expanded in the shard.

#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/core/shards.h"

namespace intarsia {

// Copies a local tensor, if necessary, into the order of `strides`, which are those of the whole.
void follow_strides(at::Tensor& shard, at::IntArrayRef strides);

// The same, cheaper if the strides are known to be contiguous.
inline void follow_strides(at::Tensor& shard, at::IntArrayRef strides, bool contiguous) {
  if (contiguous && shard.defined() && shard.is_contiguous()) return;
  follow_strides(shard, strides);
}

// The same for the local tensors of all hosted ranks; twins stay twins.
void follow_strides(Shards& shards, at::IntArrayRef strides, bool contiguous = false);

// Makes given shards and given strides of a whole of `sizes` agree: a shard stays in its memory if its dims are in the
// order of the strides, dense where the whole is dense; else it is copied. Dims that the strides expand and a shard
// does not are not expanded afterwards.
void fit_strides(Shards& shards, at::IntArrayRef sizes, std::vector<int64_t>& strides);

// Strides of a whole of `sizes` whose shards have the strides of this one: dims in its order, expanded and with gaps
// where it has them. Contiguous if the shard's elements overlap otherwise: it must be copied then.
std::vector<int64_t> strides_around(const at::Tensor& shard, at::IntArrayRef sizes);

}  // namespace intarsia
