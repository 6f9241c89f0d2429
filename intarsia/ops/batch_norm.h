#pragma once
// Batch norm: the statistics are those of the whole batch, wherever its parts lie. For the decompositions in norms.cpp.

#include <vector>

#include <ATen/core/ivalue.h>

namespace intarsia {

// What all forms of the op have: the result, and in training the mean and the inverse deviation of each channel.
std::vector<c10::IValue> batch_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                                    const at::Tensor& running_mean, const at::Tensor& running_var, bool training,
                                    double momentum, double eps);

// native_batch_norm_backward(grad, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, mask)
bool batch_norm_backward(std::vector<c10::IValue>& stack);

}  // namespace intarsia
