#pragma once
// Means over dims that may be sharded, for statistics and for normalizations.

#include <optional>

#include <ATen/core/Tensor.h>

#include "intarsia/rules/rule.h"

namespace intarsia {

// sum / count, which weights shards of unequal size correctly: a pending sum where the dims are sharded. Half types are
// summed in float, as in the plain op, and the mean stays in the dtype of the sum. `type`: the dtype to convert the
// values to, if given. Below autograd.
at::Tensor mean_over(const at::Tensor& x, at::IntArrayRef dims, bool keep,
                     std::optional<at::ScalarType> type = std::nullopt);

// Whether every rank holds equally much of the dims that axes shard and whose mean is pending: then the average of the
// ranks' means is the mean.
bool means_weigh_the_same(const OpCall& call, const Layout& in, const Layout& out);

}  // namespace intarsia
