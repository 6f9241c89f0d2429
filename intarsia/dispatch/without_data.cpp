#include "intarsia/dispatch/without_data.h"

#include <ATen/ATen.h>

#include "intarsia/simulation/simulation.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

using Stack = std::vector<c10::IValue>;

bool is_known(const Call& call, const Decision& decision) {
  auto& op = call.op;
  if (!decision.known_outputs || !op.written.empty() || decision.outputs.size() != op.returns_arg.size()) return false;
  return std::all_of(op.views_arg.begin(), op.views_arg.end(), [](auto viewed) { return viewed < 0; });
}

Stack known_results(const Decision& decision, const Slot& slot) {
  Stack results;
  for (size_t i = 0; i < decision.outputs.size(); ++i) {
    auto& form = decision.outputs[i];
    auto options = at::TensorOptions().device(at::kMeta).dtype(form.dtype);
    results.emplace_back(form.defined ? at::empty(local_shape(*decision.out[i], form.sizes, slot.coordinate), options)
                                      : at::Tensor());
  }
  return results;
}

// The result of an op with Traits::answers_by_form, called with tensors that have memory.
void answer_by_form(const c10::OperatorHandle& op, Stack& stack) {
  for (auto& value : stack) {
    if (!value.isTensor()) continue;
    auto tensor = value.toTensor();
    value = at::empty_strided(tensor.sizes(), tensor.strides(), at::TensorOptions().dtype(tensor.dtype()));
  }
  op.callBoxed(stack);
}

// A plain tensor as a distributed one on a world of one rank, whose rules infer the results of many more ops.
at::Tensor alone(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_meta()) return tensor;
  static const auto* whole = Layout::replicated(DeviceMesh(at::kCPU, {1}, {0}));
  return wrap(Shards{tensor}, whole, tensor.sizes(), tensor.strides(), tensor.dtype());
}

at::Tensor plain(const at::Tensor& tensor) { return is_dtensor(tensor) ? body_of(tensor).shards()[0] : tensor; }

void exchange(c10::IValue& value, at::Tensor (*make)(const at::Tensor&)) {
  if (value.isTensor()) {
    value = make(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorList()) list.push_back(make(tensor));
    value = list;
  }
}

// For an op that returns the arguments it writes, leaves these on the stack; false for other ops.
bool written_arguments(const c10::FunctionSchema& schema, Stack& stack) {
  Stack results;
  for (auto& result : schema.returns()) {
    if (!result.alias_info() || !result.alias_info()->isWrite()) return false;
    for (size_t i = 0; i < stack.size(); ++i) {
      auto* own = schema.arguments()[i].alias_info();
      if (own && own->beforeSets() == result.alias_info()->beforeSets()) results.push_back(stack[i]);
    }
  }
  stack = std::move(results);
  return true;
}

}  // namespace

bool run_without_data(const Call& call, const Decision& decision, std::vector<Stack>& results) {
  bool by_form = call.op.traits->answers_by_form;
  if (!by_form && !is_known(call, decision)) return false;
  for (auto& slot : call.mesh.slots()) {
    if (!by_form) results.push_back(known_results(decision, slot));
    if (by_form) answer_by_form(call.op.handle, results.emplace_back(call.args.begin(), call.args.end()));
  }
  return true;
}

void call_without_data(const c10::OperatorHandle& op, Stack& stack) {
  if (rule_table().traits_of(op.operator_name()).answers_by_form) return answer_by_form(op, stack);
  auto kept = stack;
  try {
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    stack = std::move(kept);
    if (!op.schema().returns().empty() && written_arguments(op.schema(), stack)) return;
    WorldScope scope(world_of_one());
    for (auto& value : stack) exchange(value, alone);
    op.callBoxed(stack);
    for (auto& value : stack) exchange(value, plain);
  }
}

}  // namespace intarsia
