#pragma once
// Helpers of lowerings: layouts, dims and optional arguments of their tensors. All of them run below autograd.

#include <ATen/core/Tensor.h>

namespace intarsia {

// Whether a mesh axis shards one of the dims (not negative).
bool is_cut(const at::Tensor& tensor, at::IntArrayRef dims);

// The tensor with its pending reductions run; other placements stay.
at::Tensor settle(const at::Tensor& tensor);

// The tensor in the layout of another one of the same shape.
at::Tensor lie_like(const at::Tensor& tensor, const at::Tensor& other);

// The tensor with one dim gathered.
at::Tensor whole_along(const at::Tensor& tensor, int64_t dim);

// The tensor with its elements in the order of the strides.
at::Tensor in_order(const at::Tensor& tensor, at::IntArrayRef strides);

// The dtype in which values of a dtype are summed: float for halves.
at::ScalarType sum_type(at::ScalarType type);

// The dims, none of them negative; an empty list means all.
std::vector<int64_t> wrapped_dims(at::IntArrayRef dims, int64_t ndim);

// The number of elements along the dims.
double extent(const at::Tensor& tensor, at::IntArrayRef dims);

// The dtype in an argument that may be None.
inline std::optional<at::ScalarType> dtype_of(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional(value.toScalarType());
}

// The order of a norm in an argument that may be None.
inline at::Scalar ord_of(const c10::IValue& value) { return value.isNone() ? at::Scalar(2) : value.toScalar(); }

// The tensor in an argument that may be None.
inline at::Tensor optional_tensor(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

}  // namespace intarsia
