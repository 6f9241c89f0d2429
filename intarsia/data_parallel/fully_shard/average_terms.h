#pragma once
// What each rank has of a gradient that comes distributed over the axes of data parallelism.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/core/layout.h"
#include "intarsia/core/shards.h"

namespace intarsia {

// Note [Terms of an average]
// Where activations, too, are distributed over the axes of data parallelism, a gradient comes as one tensor over all
// ranks. Data parallelism takes what each rank has of it for a term of an average: so each rank's own loss counts as on
// a plain model. A value that all ranks have is the average of equal terms. A sum that is pending becomes that sum
// divided by the ranks, as in PyTorch; and so does a gradient that is cut along the axis, which is a sum of parts that
// are zero elsewhere. With `one_loss` there is one loss over all ranks, and the sum is what it is: the terms are as
// many times larger as there are ranks.

// One per slot, in the layout of the whole but for the `axes` of data parallelism, where they are the terms.
Shards to_average_terms(const std::string& name, const at::Tensor& grad, const Layout& whole,
                        const std::vector<int64_t>& axes, bool one_loss);

}  // namespace intarsia
