#pragma once
// What losses share: the reductions, and a mean that is a sum divided by a number.

#include <functional>
#include <optional>

#include <ATen/core/Reduction.h>

#include "intarsia/rules/lowering.h"

namespace intarsia {

inline constexpr int64_t kNone = at::Reduction::None, kMean = at::Reduction::Mean, kSum = at::Reduction::Sum;

// Which reduction a call of a loss asks for.
int64_t reduction_of(const OpCall& call);

// How many terms a mean is over, by the forms of the call; none where the mean is left to the rows.
using Terms = std::function<std::optional<double>(const OpCall& call)>;

// A mean is a sum divided by the number of its terms, whatever the shards. A sum of many half numbers does not fit
// where their mean does: among the first `widened` tensors, such are summed in float, as plain ops do.
Planner mean_by_sum(const char* op, Terms terms, size_t widened = 0);

// The same for loss_backward(grad, input, target, ...).
Planner mean_by_sum_backward(const char* op, Terms terms, size_t widened = 0);

}  // namespace intarsia
