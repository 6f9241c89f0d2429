#pragma once
// What normalizations share: scale and shift, and the dtypes of their results.

#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/rules/rule.h"

namespace intarsia {

// The dims from `first` on.
std::vector<int64_t> dims_from(int64_t first, int64_t ndim);

// x * weight, in the dtype of x; x itself without a weight.
at::Tensor scaled(const at::Tensor& x, const at::Tensor& weight);
at::Tensor scaled_and_moved(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// [C] -> [1, C, 1, ...], to broadcast against `x`; undefined stays undefined.
at::Tensor along_channels(const at::Tensor& values, const at::Tensor& x);

// The dtype of what belongs to the weight (statistics, its gradient): for half types, float if the weight is float.
at::ScalarType weight_type(const at::Tensor& weight, const at::Tensor& input);

// For the rule of a norm or its backward: the result has the dtype of the first tensor; what belongs to the weight has
// that of the last.
std::vector<c10::ScalarType> norm_dtypes(const OpCall& call);

}  // namespace intarsia
