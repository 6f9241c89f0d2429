#pragma once
// What losses share: the reductions, and a mean computed as a sum divided by a number.

#include <functional>
#include <optional>

#include <ATen/core/Reduction.h>

#include "intarsia/rules/lowering.h"

namespace intarsia {

inline constexpr int64_t kNone = at::Reduction::None, kMean = at::Reduction::Mean, kSum = at::Reduction::Sum;

// The reduction that a call of a loss requests.
int64_t reduction_of(const OpCall& call);

// The number of terms of a mean, from the forms of the call; none if the mean is left to the rows.
using Terms = std::function<std::optional<double>(const OpCall& call)>;

// A mean is a sum divided by the number of its terms, whatever the shards. A sum of many halves may overflow where
// their mean does not: halves among the first `widened` tensors are summed in float, as plain ops do.
Planner mean_by_sum(const char* op, Terms terms, size_t widened = 0);

// The same for loss_backward(grad, input, target, ...).
Planner mean_by_sum_backward(const char* op, Terms terms, size_t widened = 0);

}  // namespace intarsia
