#pragma once
// Packs tensors of any form into the flat memory that engines send, and unpacks them.

#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/comm/group.h"

namespace intarsia {

// The memory that a collective writes for one tensor: the tensor's own if it is contiguous, else a buffer that is
// copied to the tensor at the end.
class Target {
 public:
  explicit Target(at::Tensor tensor);
  const at::Tensor& flat() const { return flat_; }
  bool direct() const;  // it is the tensor's own memory
  void fill() const;    // copies to the tensor what was written

 private:
  at::Tensor tensor_, flat_;
};

// The values in order: in the tensor's own memory if it is contiguous.
at::Tensor flat_values(const at::Tensor& tensor);
// The same in separate memory.
at::Tensor flat_copy(const at::Tensor& tensor);

// A list of tensors as one flat tensor, one after the other.
at::Tensor joined(const std::vector<at::Tensor>& tensors);
MemberCounts counts_of(const std::vector<at::Tensor>& tensors);
void take_apart(const at::Tensor& whole, const std::vector<at::Tensor>& into);

}  // namespace intarsia
