#pragma once
// What normalizations have in common: the scale and the shift behind them, and the types of what they return.

#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/rules/rule.h"

namespace intarsia {

// The dims from `first` on.
std::vector<int64_t> dims_from(int64_t first, int64_t ndim);

// x * weight, in the type of x; itself without a weight.
at::Tensor scaled(const at::Tensor& x, const at::Tensor& weight);
at::Tensor scaled_and_moved(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// [C] -> [1, C, 1, ...], to stand beside `x`; undefined stays so.
at::Tensor along_channels(const at::Tensor& values, const at::Tensor& x);

// The type of what goes with the weight (statistics, its gradient): those of half types are float where the weight is.
at::ScalarType weight_type(const at::Tensor& weight, const at::Tensor& input);

// Of a norm or its backward, for a rule: the result has the type of the first tensor; what goes with the weight that of
// the last.
std::vector<c10::ScalarType> norm_dtypes(const OpCall& call);

}  // namespace intarsia
