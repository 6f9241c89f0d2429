#include "intarsia/dispatch/out.h"

#include <ATen/ATen.h>

#include "intarsia/comm/trace.h"
#include "intarsia/dispatch/run.h"
#include "intarsia/simulation/twins/twins.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

// Gives the tensor the form and the body of `result`.
void adopt(const at::Tensor& tensor, const at::Tensor& result) {
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides());
  tensor.unsafeGetTensorImpl()->set_backend_meta(shared_body_of(result));
}

// Resizes an out tensor of another shape, as the plain op does; then it takes the layout of the result.
void store(const at::Tensor& out, const at::Tensor& result, const Op& op) {
  TORCH_CHECK(is_dtensor(out), "[", op.name, "] the out tensor of shape ", out.sizes(),
              " is plain, and a distributed result cannot be written into it. Distribute it first.");
  TORCH_CHECK(is_dtensor(result), "[", op.name, "] the out tensor is distributed, but no input is. Distribute them.");
  TORCH_CHECK(at::can_cast(result.scalar_type(), out.scalar_type()), "result type ", result.scalar_type(),
              " can't be cast to the desired output type ", out.scalar_type());
  auto& target = body_of(out);
  if (out.sizes() != result.sizes()) {
    if (out.numel() != 0) {
      TORCH_WARN("An output with one or more elements was resized since it had shape ", out.sizes(),
                 ", which does not match the required output shape ", result.sizes(), ".");
    }
    return adopt(out, result.to(out.scalar_type()));
  }
  CauseScope cause(op.name.c_str(), true);
  auto values = shards_in(result, target.layout);
  auto& shards = target.shards();
  write_once(shards, values, [&](size_t slot) { shards[slot].copy_(values[slot]); });
  target.written();
}

// An empty plain tensor takes the form of the distributed one beside it, as LibTorch's modules prepare their results:
// it becomes a distributed one.
void form_plain(const Op& op, const at::Tensor& self, std::vector<c10::IValue>& stack) {
  auto count = op.kinds.size();
  TORCH_CHECK_NOT_IMPLEMENTED(op.traits->forms_empty && self.numel() == 0, "[", op.name, "] a plain tensor of shape ",
                              self.sizes(), " cannot take the form of a distributed one. ",
                              "Make a new one with at::empty_like.");
  UnguidedScope unguided;  // it is about to be written
  auto fresh = at::empty_like(stack[stack.size() - count + 1].toTensor());
  self.unsafeGetTensorImpl()->shallow_copy_from(fresh.getIntrusivePtr());
  stack.erase(stack.end() - static_cast<int64_t>(count), stack.end());
  stack.emplace_back(self);
}

}  // namespace

void run_form_op(const Op& op, std::vector<c10::IValue>& stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(op.traits->refused.empty(), "[", op.name, "] ", op.traits->refused);
  TORCH_CHECK_NOT_IMPLEMENTED(op.functional.operator_name() != op.handle.operator_name(), "[", op.name,
                              "] changes the form of a tensor in place, which a distributed tensor cannot do. ",
                              "Use an op that returns a new tensor.");
  auto& argument = stack[stack.size() - op.kinds.size()];
  auto self = argument.toTensor();
  if (!is_dtensor(self)) return form_plain(op, self, stack);
  argument = another_handle(self);  // the result may refer to what it views, and self is about to become the result
  op.functional.callBoxed(stack);
  adopt(self, stack.back().toTensor());
  stack.back() = self;
}

void run_out_op(const Op& op, std::vector<c10::IValue>& stack) {
  auto count = op.handle.schema().arguments().size();
  TORCH_CHECK_NOT_IMPLEMENTED(op.functional.operator_name() != op.handle.operator_name(), "[", op.name,
                              "] writes into out tensors and has no functional form. Call it on full_tensor results.");
  std::vector<c10::IValue> outs(stack.end() - (count - op.functional_args), stack.end());
  stack.erase(stack.end() - (count - op.functional_args), stack.end());
  op.functional.callBoxed(stack);
  auto results = stack.size() - op.returns_arg.size();
  for (size_t r = 0; r < op.returns_arg.size(); ++r) {
    auto& out = outs[op.returns_arg[r] - op.functional_args];
    if (out.isTensorList()) {
      auto tensors = out.toTensorVector();
      auto values = stack[results + r].toTensorVector();
      for (size_t i = 0; i < tensors.size(); ++i) store(tensors[i], values[i], op);
    } else {
      store(out.toTensor(), stack[results + r].toTensor(), op);
    }
    stack[results + r] = out;
  }
}

}  // namespace intarsia
