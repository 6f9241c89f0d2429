#include "intarsia/ops/own_tensors.h"

#include <algorithm>

#include "intarsia/dispatch/from_nothing.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/policy.h"

namespace intarsia {
namespace {

bool is_plain(const at::Tensor& tensor) { return tensor.defined() && tensor.numel() != 1 && !is_dtensor(tensor); }

bool any_plain(const c10::IValue& arg) {
  if (arg.isTensor()) return is_plain(arg.toTensor());
  if (!arg.isTensorList()) return false;
  auto tensors = arg.toTensorVector();
  return std::any_of(tensors.begin(), tensors.end(), is_plain);
}

}  // namespace

void with_own_tensors(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  auto first = stack->end() - static_cast<int64_t>(op.schema().arguments().size());
  bool mixed = std::any_of(first, stack->end(), any_plain);
  for (auto arg = first; arg != stack->end(); ++arg) {
    if (!arg->isTensor() || !is_dtensor(arg->toTensor()) || !layout_of(arg->toTensor()).has_partial()) continue;
    *arg = redistribute(arg->toTensor(), settled(placements_of(arg->toTensor())));
  }
  PlainTensorScope scope(mixed ? plain_tensor_policy() : PlainTensors::replicate);
  run_composite(op, stack);
}

}  // namespace intarsia
