#pragma once
// Tensors whose data is not simply in a storage, which ops below dispatch would read past its end.

#include <string>

#include <ATen/core/Tensor.h>

namespace intarsia {

// What kind of such a tensor it is, for an error: a wrapper of Python or of functorch, sparse, nested, quantized,
// opaque. Empty for tensors in memory and on meta, and for distributed ones.
std::string foreign_kind(const at::Tensor& tensor);

// Wrappers look like tensors in memory, but have none: an error that names the function and the tensor.
void check_no_wrapper(const at::Tensor& tensor, const char* function, const std::string& name = "the tensor");

}  // namespace intarsia
