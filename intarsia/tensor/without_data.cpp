#include "intarsia/tensor/without_data.h"

#include <ATen/ATen.h>

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

// Which attention kernel serves a call depends on forms only, but the answer for meta tensors is not that for others.
Stack choose_attention(const Call& call) {
  Stack stack(call.args.begin(), call.args.end());
  for (auto& value : stack) {
    if (!value.isTensor()) continue;
    auto tensor = value.toTensor();
    value = at::empty_strided(tensor.sizes(), tensor.strides(), at::TensorOptions().dtype(tensor.dtype()));
  }
  call.op.handle.callBoxed(stack);
  return stack;
}

}  // namespace

bool run_without_data(const Call& call, const Decision& decision, std::vector<Stack>& results) {
  bool choice = call.op.name == "aten::_fused_sdp_choice";
  if (!choice && !is_known(call, decision)) return false;
  for (auto& slot : call.mesh.slots()) results.push_back(choice ? choose_attention(call) : known_results(decision, slot));
  return true;
}

}  // namespace intarsia
