#include "intarsia/c10d_backend/flat_buffer.h"

#include <utility>

#include <ATen/ATen.h>

namespace intarsia {

Target::Target(at::Tensor tensor) : tensor_(std::move(tensor)) {
  flat_ = lies_in_order(tensor_) ? tensor_.view(-1) : at::empty({tensor_.numel()}, tensor_.options());
}

bool Target::direct() const { return lies_in_order(tensor_); }

void Target::fill() const {
  if (!direct()) tensor_.copy_(flat_.view(tensor_.sizes()));
}

at::Tensor flat_copy(const at::Tensor& tensor) {
  auto copy = at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
  return copy.copy_(tensor).view(-1);
}

MemberCounts counts_of(const std::vector<at::Tensor>& tensors) {
  MemberCounts counts;
  for (auto& t : tensors) counts.push_back(t.numel());
  return counts;
}

}  // namespace intarsia
