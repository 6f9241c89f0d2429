#pragma once
// Detects tensors whose values are not in a plain strided storage: a kernel that assumes one would read past its end.

#include <string>

#include <ATen/core/Tensor.h>

namespace intarsia {

// The kind of such a tensor, for error texts: a wrapper of Python or of functorch, sparse, nested, quantized, opaque.
// Empty for strided tensors in memory or on meta, and for distributed ones.
std::string foreign_kind(const at::Tensor& tensor);

// Raises an error that names the function and the tensor if it is a wrapper, which looks like a tensor in memory but
// has no memory.
void check_no_wrapper(const at::Tensor& tensor, const char* function, const std::string& name = "the tensor");

}  // namespace intarsia
