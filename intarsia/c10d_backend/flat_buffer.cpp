#include "intarsia/c10d_backend/flat_buffer.h"

#include <utility>

#include <ATen/ATen.h>

namespace intarsia {
namespace {

bool lies_in_order(const at::Tensor& t) { return t.is_contiguous() && !t.is_conj() && !t.is_neg(); }

}  // namespace

Target::Target(at::Tensor tensor) : tensor_(std::move(tensor)) {
  flat_ = lies_in_order(tensor_) ? tensor_.view(-1) : at::empty({tensor_.numel()}, tensor_.options());
}

bool Target::direct() const { return lies_in_order(tensor_); }

void Target::fill() const {
  if (!direct()) tensor_.copy_(flat_.view(tensor_.sizes()));
}

at::Tensor flat_values(const at::Tensor& tensor) { return tensor.resolve_conj().resolve_neg().contiguous().view(-1); }

at::Tensor flat_copy(const at::Tensor& tensor) {
  auto copy = at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
  return copy.copy_(tensor).view(-1);
}

at::Tensor joined(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (auto& t : tensors) parts.push_back(flat_values(t));
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

MemberCounts counts_of(const std::vector<at::Tensor>& tensors) {
  MemberCounts counts;
  for (auto& t : tensors) counts.push_back(t.numel());
  return counts;
}

void take_apart(const at::Tensor& whole, const std::vector<at::Tensor>& into) {
  int64_t offset = 0;
  for (auto& t : into) {
    t.copy_(whole.narrow(0, offset, t.numel()).view(t.sizes()));
    offset += t.numel();
  }
}

}  // namespace intarsia
