#pragma once
// set_data on a leaf with two values: the program gives it other data, and the owner is to know.
//
// set_data does not pass the dispatcher: LibTorch calls the one object that carries out what a tensor does for autograd. Ours
// takes its place, looks at set_data, and hands everything on.

#include <ATen/core/Tensor.h>

namespace intarsia {

// From now on set_data on a leaf whose watcher is ParamOwner calls take_value. Once for the process.
void watch_set_data();

// set_data as LibTorch has it, for the owner.
void set_data_unwatched(const at::Tensor& leaf, const at::Tensor& value);

}  // namespace intarsia
