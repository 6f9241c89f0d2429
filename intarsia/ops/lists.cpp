// Ops on lists of tensors: foreach and fused optimizer steps. Elementwise over tensors that lie alike, so one call per
// rank on the lists of local shards does what a call per tensor would.

#include <ATen/ATen.h>

#include "intarsia/comm/axis.h"
#include "intarsia/dispatch/run.h"
#include "intarsia/ops/along/recut.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

using Lists = std::vector<std::vector<at::Tensor>>;  // per argument; empty where it is none
constexpr size_t kLeaders = 0, kGradients = 1;       // the arguments that the others follow, and that may lie elsewhere

// What a tensor's part in a step depends on.
struct Item {
  bool defined;
  at::IntArrayRef sizes;
  const Layout* layout;  // null if it is plain
};

Item item_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {false, {}, nullptr};
  return {true, tensor.sizes(), is_dtensor(tensor) ? body_of(tensor).layout : nullptr};
}

Item item_of(const CutCall& c, size_t input) { return {c.input(input).defined, c.input(input).sizes, c.now[input]}; }

// A plain number, or a distributed one that is the same everywhere, serves any layout.
bool serves_all(const Item& item) {
  if (!item.defined) return true;
  bool number = item.sizes.size() <= 1 && c10::multiply_integers(item.sizes) == 1;
  return number && (!item.layout || item.layout->is_replicated());
}

// Of one form and on one mesh.
bool is_partner(const Item& item, const Item& leader) {
  return item.layout && item.layout->mesh() == leader.layout->mesh() && item.sizes == leader.sizes;
}

// Whether every rank can do its part of lists of these lengths alone: every element lies as its partner among the leaders, or
// serves them all. With `may_move`, gradients count as if they had been brought to where their partners lie.
// item(arg, i) is element i of the list at arg.
template <class ItemAt>
bool lie_alike(const std::vector<size_t>& lengths, bool may_move, ItemAt item) {
  auto count = lengths[kLeaders];
  if (count == 0) return false;
  for (size_t i = 0; i < count; ++i) {
    auto leader = item(kLeaders, i);
    if (!leader.layout || leader.layout->has_partial()) return false;
    auto slots = leader.layout->mesh().slots().size();
    if (slots == 0 || slots != item(kLeaders, 0).layout->mesh().slots().size()) return false;
  }
  for (size_t arg = kLeaders + 1; arg < lengths.size(); ++arg) {
    if (lengths[arg] != 0 && lengths[arg] != count) return false;
    for (size_t i = 0; i < lengths[arg]; ++i) {
      auto own = item(arg, i), leader = item(kLeaders, i);
      if (!is_partner(own, leader)) {
        if (leader.sizes.empty() || !serves_all(own)) return false;
      } else if (own.layout != leader.layout && !(may_move && arg == kGradients)) {
        return false;
      }
    }
  }
  return true;
}

Lists lists_of(const Stack& stack) {
  Lists lists(stack.size());
  for (size_t arg = 0; arg < stack.size(); ++arg) {
    if (stack[arg].isTensorList()) lists[arg] = stack[arg].toTensorVector();
  }
  return lists;
}

at::Tensor at_slot(const at::Tensor& tensor, size_t slot) {
  return is_dtensor(tensor) ? body_of(tensor).shards()[slot] : tensor;
}

// Lists say of their elements that they are written, or of themselves.
bool writes(const c10::AliasInfo& alias) {
  return alias.isWrite() || (!alias.containedTypes().empty() && alias.containedTypes()[0].isWrite());
}

std::vector<at::Tensor> call_on_slot(const c10::OperatorHandle& op, const Stack& stack, const Lists& lists, size_t slot) {
  Stack local = stack;
  for (size_t arg = 0; arg < stack.size(); ++arg) {
    if (stack[arg].isTensorList()) {
      c10::List<at::Tensor> list;
      list.reserve(lists[arg].size());
      for (auto& tensor : lists[arg]) list.push_back(at_slot(tensor, slot));
      local[arg] = std::move(list);
    } else if (stack[arg].isTensor()) {
      local[arg] = at_slot(stack[arg].toTensor(), slot);
    }
  }
  op.callBoxed(local);
  return local.empty() || !local[0].isTensorList() ? std::vector<at::Tensor>() : local[0].toTensorVector();
}

// Per slot: the results, one per leader.
std::vector<std::vector<at::Tensor>> call_on_slots(const c10::OperatorHandle& op, const Stack& stack, const Lists& lists) {
  std::vector<std::vector<at::Tensor>> results;
  auto slots = mesh_of(lists[kLeaders][0]).slots().size();
  // Step counters that every simulated rank would count on are shared by all: each rank gets its own.
  for (size_t slot = 0; slot < slots; ++slot) {
    auto copy = lists;
    for (auto& list : copy) {
      for (auto& tensor : list) {
        if (slot + 1 < slots && tensor.defined() && !is_dtensor(tensor)) tensor = tensor.clone();
      }
    }
    results.push_back(call_on_slot(op, stack, copy, slot));
  }
  return results;
}

// Lists that lie alike.
void run_on_shards(const c10::OperatorHandle& op, Stack& stack, const Lists& lists) {
  auto& schema = op.schema();
  auto results = call_on_slots(op, stack, lists);
  for (size_t arg = 0; arg < stack.size(); ++arg) {
    auto* alias = schema.arguments()[arg].alias_info();
    if (!stack[arg].isTensorList() || !alias || !writes(*alias)) continue;
    for (auto& tensor : lists[arg]) {
      if (is_dtensor(tensor)) body_of(tensor).written();
    }
  }
  if (schema.returns().empty()) return stack.clear();
  c10::List<at::Tensor> wrapped;
  auto& leaders = lists[kLeaders];
  for (size_t i = 0; i < leaders.size(); ++i) {
    Shards shards;
    for (auto& of_slot : results) shards.push_back(of_slot[i]);
    auto dtype = shards[0].dtype();
    wrapped.push_back(wrap(std::move(shards), &layout_of(leaders[i]), leaders[i].sizes(),
                           at::infer_dense_strides(leaders[i].sizes(), leaders[i].strides()), dtype));
  }
  stack = {wrapped};
}

// LibTorch's own loop over single tensors where they do not lie alike; a key that nobody has kernels for leads there.
// Lists are long: looking at them takes less time than a key.
void foreach_pass(const c10::OperatorHandle& op, Stack& stack) {
  bool numbers = true;
  for (auto& value : stack) numbers = numbers && (!value.isTensor() || serves_all(item_of(value.toTensor())));
  auto lists = lists_of(stack);
  std::vector<size_t> lengths;
  for (auto& list : lists) lengths.push_back(list.size());
  auto item = [&](size_t arg, size_t i) { return item_of(lists[arg][i]); };
  if (!numbers || !lie_alike(lengths, false, item)) return op.redispatchBoxed(kComposite, &stack);
  run_on_shards(op, stack, lists);
}

// Where the tensors of each argument stand among the inputs. All lists that are not empty count as equally long; if they
// cannot be, all count as empty.
struct Placing {
  std::vector<size_t> begins, lengths;  // per argument; a length for lists alone
  std::vector<size_t> numbers;          // inputs outside lists

  explicit Placing(const OpCall& call);
};

Placing::Placing(const OpCall& call) {
  auto& arguments = call.schema.arguments();
  std::vector<bool> full;  // lists with tensors in them are no longer there
  size_t lists = 0, singles = 0;
  for (size_t arg = 0; arg < arguments.size(); ++arg) {
    bool list = arguments[arg].type()->isSubtypeOf(*c10::ListType::ofTensors());
    full.push_back(list && call.args[arg].isNone());
    lists += full[arg];
    singles += arguments[arg].type()->isSubtypeOf(*c10::OptionalType::ofTensor());
  }
  auto length = lists ? (call.inputs.size() - singles) / lists : 0;
  size_t next = 0;
  for (size_t arg = 0; arg < arguments.size(); ++arg) {
    begins.push_back(next);
    lengths.push_back(full[arg] ? length : 0);
    next += lengths[arg];
    if (arguments[arg].type()->isSubtypeOf(*c10::OptionalType::ofTensor())) numbers.push_back(next++);
  }
  if (next != call.inputs.size()) lengths.assign(lengths.size(), 0);
}

// A fused step also takes gradients that lie elsewhere, unless it has to unscale them in place.
Way fused_pass(const c10::OperatorHandle& op, const CutCall& c) {
  Placing placing(c.call);
  for (auto input : placing.numbers) {
    if (!serves_all(item_of(c, input))) return {};
  }
  auto scale = c.call.arg_index("grad_scale");
  bool may_move = scale < 0 || !c.input(placing.begins[scale]).defined;
  auto item = [&](size_t arg, size_t i) { return item_of(c, placing.begins[arg] + i); };
  if (!lie_alike(placing.lengths, may_move, item)) return {};
  return [op](Stack& stack) {
    auto lists = lists_of(stack);
    auto& leaders = lists[kLeaders];
    for (auto& list : lists) {
      TORCH_CHECK(list.empty() || list.size() == leaders.size(), "[", op.operator_name(), "] lists of ", leaders.size(), " and of ",
                  list.size(), " tensors. Give one tensor per parameter.");
    }
    auto& gradients = lists[kGradients];
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (is_partner(item_of(gradients[i]), item_of(leaders[i]))) gradients[i] = brought_to(gradients[i], &layout_of(leaders[i]));
    }
    run_on_shards(op, stack, lists);
  };
}

// Every rank looks at its own shards; whoever finds something tells all others.
void unscale(Stack& stack) {
  auto grads = stack[0].toTensorVector();
  auto found = stack[1].toTensor(), scale = stack[2].toTensor();
  auto& mesh = mesh_of(grads[0]);
  Shards verdicts;
  for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
    std::vector<at::Tensor> mine;
    for (auto& grad : grads) mine.push_back(at_slot(grad, slot));
    verdicts.push_back(at::zeros_like(at_slot(found, slot)));
    at::_amp_foreach_non_finite_check_and_unscale_(mine, verdicts[slot], at_slot(scale, slot));
  }
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) verdicts = Axis::of(mesh, axis).all_reduce(verdicts, ReduceOp::max);
  for (size_t slot = 0; slot < verdicts.size(); ++slot) {
    auto target = at_slot(found, slot);
    target.copy_(at::maximum(target, verdicts[slot]));
  }
  if (is_dtensor(found)) body_of(found).written();
  for (auto& grad : grads) body_of(grad).written();
  stack.clear();
}

Way unscale_pass(const CutCall& c) {
  auto grads = c.call.inputs.size() - 2;
  if (grads == 0 || !serves_all(item_of(c, grads)) || !serves_all(item_of(c, grads + 1))) return {};
  for (size_t i = 0; i < grads; ++i) {
    if (!c.is_distributed(i) || c.has_partial(i) || c.now[i]->mesh() != c.now[0]->mesh()) return {};
  }
  return unscale;
}

bool is_one_of(const std::string& name, std::initializer_list<const char*> ops) {
  for (std::string op : ops) {
    if (name == "aten::" + op || name == "aten::" + op + "_") return true;
  }
  return false;
}

}  // namespace

void add_lists(RuleTable& t) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (auto& name : dispatcher.getAllOpNames()) {
    auto handle = dispatcher.findSchema(name);
    if (!handle || name.name.rfind("aten::_f", 0) != 0) continue;
    auto& arguments = handle->schema().arguments();
    if (arguments.empty() || arguments.back().is_out() || arguments[0].type()->str().find("Tensor[]") != 0) continue;
    auto op = c10::toString(name);
    if (is_one_of(name.name, {"_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad"}) && name.name.back() == '_') {
      t.along(op, [handle = *handle](const CutCall& c) { return fused_pass(handle, c); });
    } else if (!foreach_base_of(name).empty() &&
               !is_one_of(name.name, {"_foreach_norm", "_foreach_max", "_foreach_powsum", "_foreach_mm"})) {
      t.always(op, [handle = *handle](Stack& stack) { foreach_pass(handle, stack); });
    }
  }
  t.along("aten::_amp_foreach_non_finite_check_and_unscale_", unscale_pass);
}

}  // namespace intarsia
