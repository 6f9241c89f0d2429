#pragma once
// Per-rank tensors: one at::Tensor that holds a value per hosted rank, as to_local returns in a simulation.
//
// Plain ops fan out over the values; plain tensors among the arguments are the same for every rank. If the values
// differ in shape, the sizes are per-rank numbers (number.h): sym_sizes() returns them, and sizes() raises an error.

#include <ATen/core/Tensor.h>

#include "intarsia/core/shards.h"
#include "intarsia/libtorch/dispatch_keys.h"

namespace intarsia {

// Creates a per-rank tensor of one value per hosted rank; whether a tensor is one; and its values.
at::Tensor per_rank(Shards values);
bool is_per_rank(const at::Tensor& tensor);
const Shards& values_of(const at::Tensor& tensor);

// The value of the hosted rank `slot`: of values_of for a per-rank tensor, the tensor itself for a plain one.
at::Tensor value_at(const at::Tensor& tensor, size_t slot);

// Whether the values differ in sizes, strides or offset.
bool values_differ(const at::Tensor& per_rank);

// Gives a per-rank tensor other values, in place.
void set_values(const at::Tensor& tensor, Shards values);

// Turns the 0-dim tensor that represents a Python number among the arguments of an op into a per-rank tensor.
void become_number(const at::Tensor& tensor, Shards values);

}  // namespace intarsia
