#pragma once
// Views whose elements had to be fetched from other ranks.

#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace intarsia {

// Makes `result`, a copy, the view of stack[0] that the op returns for these arguments: it is kept in sync with its
// base, and has the strides of the plain view. See Note [Views that communicate].
at::Tensor as_view(const at::Tensor& result, at::IntArrayRef strides, const char* name, const char* overload,
                   const std::vector<c10::IValue>& stack);

}  // namespace intarsia
