// Ops on lists of tensors: foreach and fused optimizer steps. Elementwise over tensors that lie alike, so one call per
// rank on the lists of local shards does what a call per tensor would.

#include <ATen/ATen.h>

#include "intarsia/comm/trace.h"
#include "intarsia/ops/recut.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/kernel.h"
#include "intarsia/tensor/meta.h"

namespace intarsia {
namespace {

using Stack = std::vector<c10::IValue>;

bool is_number(const at::Tensor& tensor) { return tensor.numel() == 1 && tensor.dim() <= 1; }

// A plain number, or a distributed one that is the same everywhere, serves any layout.
bool serves_all(const at::Tensor& tensor) {
  if (!tensor.defined()) return true;
  return is_number(tensor) && (!is_dtensor(tensor) || layout_of(tensor).is_replicated());
}

at::Tensor at_slot(const at::Tensor& tensor, size_t slot) {
  return tensor.defined() && is_dtensor(tensor) ? meta_of(tensor).shards()[slot] : tensor;
}

// Lists say of their elements that they are written, or of themselves.
bool writes(const c10::AliasInfo& alias) {
  return alias.isWrite() || (!alias.containedTypes().empty() && alias.containedTypes()[0].isWrite());
}

// The lists of a call, with every element lying as its partner in the first list.
struct Lists {
  std::vector<std::vector<at::Tensor>> lists;  // per argument; empty where it is none
  size_t first = 0;                            // the argument that the others follow
  size_t slots = 0;
};

// False if some tensors do not lie alike. With `may_move`, what is only read is brought to where its partner lies.
bool read_lists(const c10::FunctionSchema& schema, const Stack& stack, bool may_move, Lists& call) {
  call.lists.resize(stack.size());
  bool found = false;
  for (size_t arg = 0; arg < stack.size(); ++arg) {
    if (stack[arg].isTensor() && !serves_all(stack[arg].toTensor())) return false;
    if (!stack[arg].isTensorList()) continue;
    call.lists[arg] = stack[arg].toTensorVector();
    if (!found) call.first = arg, found = true;
  }
  if (!found || call.lists[call.first].empty()) return false;
  auto& leaders = call.lists[call.first];
  for (auto& leader : leaders) {
    if (!is_dtensor(leader) || layout_of(leader).has_partial()) return false;
    auto slots = mesh_of(leader).slots().size();
    if (slots == 0 || (call.slots && slots != call.slots)) return false;
    call.slots = slots;
  }
  for (size_t arg = 0; arg < call.lists.size(); ++arg) {
    auto& list = call.lists[arg];
    if (arg == call.first || list.empty()) continue;
    if (list.size() != leaders.size()) return false;
    for (size_t i = 0; i < list.size(); ++i) {
      if (!is_dtensor(list[i]) || mesh_of(list[i]) != mesh_of(leaders[i]) || list[i].sizes() != leaders[i].sizes()) {
        if (leaders[i].dim() > 0 && serves_all(list[i])) continue;
        return false;
      }
      auto* goal = &layout_of(leaders[i]);
      if (&layout_of(list[i]) == goal) continue;
      if (!may_move || arg != 1) return false;  // the gradients
      list[i] = brought_to(list[i], goal);
    }
  }
  return true;
}

std::vector<at::Tensor> call_on_slot(const c10::OperatorHandle& op, const Stack& stack, const Lists& call, size_t slot) {
  Stack local = stack;
  for (size_t arg = 0; arg < stack.size(); ++arg) {
    if (stack[arg].isTensorList()) {
      c10::List<at::Tensor> list;
      list.reserve(call.lists[arg].size());
      for (auto& tensor : call.lists[arg]) list.push_back(at_slot(tensor, slot));
      local[arg] = std::move(list);
    } else if (stack[arg].isTensor()) {
      local[arg] = at_slot(stack[arg].toTensor(), slot);
    }
  }
  op.callBoxed(local);
  return local.empty() || !local[0].isTensorList() ? std::vector<at::Tensor>() : local[0].toTensorVector();
}

bool run_on_shards(const c10::OperatorHandle& op, Stack& stack, bool may_move) {
  Lists call;
  auto& schema = op.schema();
  CauseScope cause("a step over lists", true);
  if (!read_lists(schema, stack, may_move, call)) return false;
  std::vector<std::vector<at::Tensor>> results;  // [slot][element]
  // Step counters that every simulated rank would count on are shared by all: each rank gets its own.
  for (size_t slot = 0; slot < call.slots; ++slot) {
    auto copy = call;
    for (auto& list : copy.lists) {
      for (auto& tensor : list) {
        if (slot + 1 < call.slots && tensor.defined() && !is_dtensor(tensor)) tensor = tensor.clone();
      }
    }
    results.push_back(call_on_slot(op, stack, copy, slot));
  }
  for (size_t arg = 0; arg < stack.size(); ++arg) {
    auto* alias = schema.arguments()[arg].alias_info();
    if (!stack[arg].isTensorList() || !alias || !writes(*alias)) continue;
    for (auto& tensor : call.lists[arg]) {
      if (is_dtensor(tensor)) meta_of(tensor).written();
    }
  }
  if (schema.returns().empty()) return stack.clear(), true;
  c10::List<at::Tensor> wrapped;
  auto& leaders = call.lists[call.first];
  for (size_t i = 0; i < leaders.size(); ++i) {
    Shards shards;
    for (auto& of_slot : results) shards.push_back(of_slot[i]);
    auto dtype = shards[0].dtype();
    wrapped.push_back(wrap(std::move(shards), &layout_of(leaders[i]), leaders[i].sizes(),
                           at::infer_dense_strides(leaders[i].sizes(), leaders[i].strides()), dtype));
  }
  stack = {wrapped};
  return true;
}

// LibTorch's own loop over single tensors; a key that nobody has kernels for leads there.
Decomposition foreach_pass(const c10::OperatorHandle& op) {
  return [op](Stack& stack) {
    if (!run_on_shards(op, stack, false)) op.redispatchBoxed(kComposite, &stack);
    return true;
  };
}

// A fused step also takes gradients that lie elsewhere, unless it has to unscale them in place.
Decomposition fused_pass(const c10::OperatorHandle& op) {
  auto scale = op.schema().argumentIndexWithName("grad_scale");
  return [op, scale](Stack& stack) {
    bool unscales = scale && stack[*scale].isTensor() && stack[*scale].toTensor().defined();
    return run_on_shards(op, stack, !unscales);
  };
}

// Every rank looks at its own shards; whoever finds something tells all others.
bool unscale(const c10::OperatorHandle& op, Stack& stack) {
  auto grads = stack[0].toTensorVector();
  auto found = stack[1].toTensor(), scale = stack[2].toTensor();
  if (grads.empty() || !serves_all(found) || !serves_all(scale)) return false;
  for (auto& grad : grads) {
    if (!is_dtensor(grad) || layout_of(grad).has_partial() || mesh_of(grad) != mesh_of(grads[0])) return false;
  }
  auto& mesh = mesh_of(grads[0]);
  Shards verdicts;
  for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
    std::vector<at::Tensor> mine;
    for (auto& grad : grads) mine.push_back(at_slot(grad, slot));
    verdicts.push_back(at::zeros_like(at_slot(found, slot)));
    at::_amp_foreach_non_finite_check_and_unscale_(mine, verdicts[slot], at_slot(scale, slot));
  }
  CauseScope cause("aten::_amp_foreach_non_finite_check_and_unscale_", true);
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) verdicts = Axis::of(mesh, axis).all_reduce(verdicts, ReduceOp::max);
  for (size_t slot = 0; slot < verdicts.size(); ++slot) {
    auto target = at_slot(found, slot);
    target.copy_(at::maximum(target, verdicts[slot]));
  }
  if (is_dtensor(found)) meta_of(found).written();
  for (auto& grad : grads) meta_of(grad).written();
  stack.clear();
  return true;
}

bool is_one_of(const std::string& name, std::initializer_list<const char*> ops) {
  for (std::string op : ops) {
    if (name == "aten::" + op || name == "aten::" + op + "_") return true;
  }
  return false;
}

}  // namespace

void add_list_ops(RuleTable& t) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (auto& name : dispatcher.getAllOpNames()) {
    auto handle = dispatcher.findSchema(name);
    if (!handle || name.name.rfind("aten::_f", 0) != 0) continue;
    auto& arguments = handle->schema().arguments();
    if (arguments.empty() || arguments.back().is_out() || arguments[0].type()->str().find("Tensor[]") != 0) continue;
    auto op = c10::toString(name);
    if (is_one_of(name.name, {"_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad"}) && name.name.back() == '_') {
      t.decompose(op, fused_pass(*handle));
    } else if (!foreach_base_of(name).empty() &&
               !is_one_of(name.name, {"_foreach_norm", "_foreach_max", "_foreach_powsum", "_foreach_mm"})) {
      t.decompose(op, foreach_pass(*handle));
    }
  }
  if (auto op = dispatcher.findSchema({"aten::_amp_foreach_non_finite_check_and_unscale_", ""})) {
    t.decompose("aten::_amp_foreach_non_finite_check_and_unscale_",
                [op = *op](Stack& stack) { return unscale(op, stack); });
  }
}

}  // namespace intarsia
