#pragma once
// Small plain tensors beside distributed ones: numbers that are the same on every rank.

#include <vector>

#include <ATen/core/Tensor.h>

namespace intarsia {

// A plain tensor, the same on every rank, as a replicated one on the mesh of `model`. Nothing is sent.
at::Tensor replicated_like(const at::Tensor& plain, const at::Tensor& model);

// The integers in a tensor, plain or distributed (lengths of samples, positions to split at): the same on every rank.
std::vector<int64_t> numbers_in(const at::Tensor& tensor);

}  // namespace intarsia
