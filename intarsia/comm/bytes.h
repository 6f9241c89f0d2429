#pragma once
// Tensors as bytes, for collectives that only copy: backends know only some dtypes, and a list of tensors has several.

#include <ATen/core/Tensor.h>

namespace intarsia {

// The memory of a contiguous tensor. A tensor of one element or none may have any strides, which a view as bytes does
// not allow.
inline at::Tensor as_bytes(const at::Tensor& t) { return t.as_strided({t.numel()}, {1}).view(at::kByte); }

}  // namespace intarsia
