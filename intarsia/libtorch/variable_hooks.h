#pragma once
// Replaces set_data in LibTorch's VariableHooksInterface, through which ATen calls autograd, so that a module that
// keeps the values of a parameter elsewhere is notified of new data.

#include <ATen/core/Tensor.h>

namespace intarsia {

// Takes `data` for `tensor` and returns true, or leaves it to LibTorch and returns false.
using TakeData = bool (*)(const at::Tensor& tensor, const at::Tensor& data);

// Installs `take`: every set_data of this process asks it first. There is one such function.
void replace_set_data(TakeData take);

// LibTorch's set_data.
void set_data_of_libtorch(const at::Tensor& tensor, const at::Tensor& data);

// Whether LibTorch calls a replaced set_data. Tries it on a new tensor.
bool set_data_can_be_replaced();

}  // namespace intarsia
