#pragma once
// Packs tensors of any form into the flat memory that engines send, and unpacks them.

#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/comm/flat_list.h"
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

// As flat_values, in memory of its own.
at::Tensor flat_copy(const at::Tensor& tensor);

MemberCounts counts_of(const std::vector<at::Tensor>& tensors);

}  // namespace intarsia
