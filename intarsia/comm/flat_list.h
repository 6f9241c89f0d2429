#pragma once
// A list of tensors in one flat buffer, in order: the only way in which several are sent as one.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

namespace intarsia {

// Bytes travel, so what memory holds must be the values: a lazy conjugate or negative is carried out first.
bool lies_in_order(const at::Tensor& tensor);      // whether its memory is its values, in their order
at::Tensor flat_values(const at::Tensor& tensor);  // the values as one dim; its own memory if that is in order

// The values of the tensors, which are of one dtype, in a buffer of their own. The buffer of a list that may be empty
// has the `options`.
at::Tensor pack(c10::ArrayRef<at::Tensor> tensors);
at::Tensor pack(c10::ArrayRef<at::Tensor> tensors, const at::TensorOptions& options);

// The same, but their own memory if that is such a buffer already.
at::Tensor joined(c10::ArrayRef<at::Tensor> tensors);
at::Tensor joined(c10::ArrayRef<at::Tensor> tensors, const at::TensorOptions& options);

// The tensors get their values from the buffer.
void unpack(const at::Tensor& flat, c10::ArrayRef<at::Tensor> into);

// Walks along a buffer: each part is a view of the elements behind the one before.
class FlatParts {
 public:
  explicit FlatParts(const at::Tensor& flat) : flat_(flat) {}
  at::Tensor next(at::IntArrayRef shape);
  int64_t passed() const { return passed_; }

 private:
  const at::Tensor& flat_;
  int64_t passed_ = 0;
};

// The places in a list of `count` tensors that have one dtype, for each dtype in the order in which they come: the same
// on all ranks.
std::vector<std::vector<size_t>> places_by_dtype(size_t count, c10::function_ref<at::ScalarType(size_t)> dtype_of);

}  // namespace intarsia
