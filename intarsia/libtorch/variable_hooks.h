#pragma once
// LibTorch's VariableHooksInterface, through which ATen calls autograd, with set_data replaced: a parameter whose
// values a module keeps elsewhere hears of new data.

#include <ATen/core/Tensor.h>

namespace intarsia {

// Takes `data` for `tensor` and returns true, or leaves it to LibTorch and returns false.
using TakeData = bool (*)(const at::Tensor& tensor, const at::Tensor& data);

// From now on `take` is asked first in every set_data of this process. There is one such function.
void replace_set_data(TakeData take);

// set_data as LibTorch has it.
void set_data_of_libtorch(const at::Tensor& tensor, const at::Tensor& data);

// Whether LibTorch's set_data calls the interface that stands in its place: tried on a tensor of its own.
bool set_data_can_be_replaced();

}  // namespace intarsia
