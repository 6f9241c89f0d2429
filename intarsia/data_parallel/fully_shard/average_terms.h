#pragma once
// Converts a gradient that is distributed over the axes of data parallelism to terms of an average, one per rank.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/core/layout.h"
#include "intarsia/core/shards.h"

namespace intarsia {

// Note [Terms of an average]
// If activations are also distributed over the axes of data parallelism, a gradient arrives as one tensor over all
// ranks. Data parallelism takes each rank's part of it as a term of an average, as if each rank had its own loss, as on
// a plain model. A value that all ranks have is the average of equal terms. A pending sum becomes that sum divided by
// the ranks, as in PyTorch; and so does a gradient that is sharded along the axis, which is a sum of parts that are
// zero elsewhere. With `one_loss` there is one loss over all ranks, and the sum stays as it is: the terms are larger by
// the number of ranks.

// One per slot, in the layout of the whole except for the `axes` of data parallelism, along which they are the terms.
Shards to_average_terms(const std::string& name, const at::Tensor& grad, const Layout& whole,
                        const std::vector<int64_t>& axes, bool one_loss);

}  // namespace intarsia
