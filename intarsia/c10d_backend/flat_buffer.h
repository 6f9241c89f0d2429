#pragma once
// Packs tensors of any form into the flat memory that engines carry, and back.

#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/comm/group.h"

namespace intarsia {

// What a collective writes for one tensor: the tensor's own memory if it lies there in order, else memory that is
// copied to it at the end.
class Target {
 public:
  explicit Target(at::Tensor tensor);
  const at::Tensor& flat() const { return flat_; }
  bool direct() const;  // it is the tensor's own memory
  void fill() const;    // the tensor from what was written

 private:
  at::Tensor tensor_, flat_;
};

// The values in order; the tensor's own memory where it lies so.
at::Tensor flat_values(const at::Tensor& tensor);
// The same in memory of its own.
at::Tensor flat_copy(const at::Tensor& tensor);

// A list of tensors as one, one behind the other.
at::Tensor joined(const std::vector<at::Tensor>& tensors);
MemberCounts counts_of(const std::vector<at::Tensor>& tensors);
void take_apart(const at::Tensor& whole, const std::vector<at::Tensor>& into);

}  // namespace intarsia
