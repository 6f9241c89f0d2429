#pragma once
// Means over dims that may be cut, for statistics and for normalizations.

#include <optional>

#include <ATen/core/Tensor.h>

#include "intarsia/rules/rule.h"

namespace intarsia {

// sum / count, so that shards of unequal size weigh right: a pending sum where the dims are cut. Half types are summed
// in float, as the plain op does, and the mean stays in the type of the sum. `type`: the type to take the values in, if
// it is not their own. Below autograd.
at::Tensor mean_over(const at::Tensor& x, at::IntArrayRef dims, bool keep,
                     std::optional<at::ScalarType> type = std::nullopt);

// Whether every rank holds as much of the dims that axes cut and whose mean is pending: the average of their means is
// the mean.
bool means_weigh_the_same(const OpCall& call, const Layout& in, const Layout& out);

}  // namespace intarsia
