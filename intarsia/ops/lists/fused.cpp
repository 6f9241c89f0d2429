// Fused optimizer steps: elementwise over lists, see Note [Elements of lists]. They have no counterpart on single
// tensors.

#include <ATen/ATen.h>

#include "intarsia/ops/along/recut.h"
#include "intarsia/ops/along/settle_together.h"
#include "intarsia/ops/lists/lists.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

// The positions of each argument's tensors among the inputs. All lists that are not empty are taken as equally long; if
// they cannot be, all are taken as empty.
struct Placing {
  std::vector<size_t> begins, lengths;  // per argument; a length for lists only
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

ListItem item_of(const CutCall& c, size_t input) {
  auto& form = c.input(input);
  return {form.defined, form.sizes, c.now[input], form.dtype};
}

void run_fused(const c10::OperatorHandle& op, const std::vector<ListPart>& parts, Stack& stack) {
  auto lists = lists_of(stack);
  auto& leaders = lists[kLeaders];
  for (auto& list : lists) {
    TORCH_CHECK(list.empty() || list.size() == leaders.size(), "[", op.operator_name(), "] lists of ", leaders.size(),
                " and of ", list.size(), " tensors. Give one tensor per parameter.");
  }
  auto& gradients = lists[kGradients];
  std::vector<at::Tensor> whole;  // those that only need a reduction to get their parameters' layout
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!is_dtensor(gradients[i]) || !is_dtensor(leaders[i])) continue;
    auto& layout = layout_of(gradients[i]);
    if (layout.with(settled(layout.placements())) == &layout_of(leaders[i])) whole.push_back(gradients[i]);
  }
  settle_together(whole);
  for (size_t i = 0; i < gradients.size(); ++i) {
    bool moves = is_dtensor(leaders[i]) && is_partner(intarsia::item_of(gradients[i]), intarsia::item_of(leaders[i]));
    if (moves) gradients[i] = brought_to(gradients[i], &layout_of(leaders[i]));
  }
  stack[kGradients] = c10::List<at::Tensor>(gradients);
  for (auto& part : parts) run_on_part(op, stack, part);
  stack.clear();
}

// A fused step also accepts gradients in other layouts, unless it has to unscale them in place.
Lowering fused_step(const c10::OperatorHandle& op, const CutCall& c) {
  Placing placing(c.call);
  auto scale = c.call.arg_index("grad_scale");
  bool may_move = scale < 0 || !c.input(placing.begins[scale]).defined;
  auto item = [&](size_t arg, size_t i) { return item_of(c, placing.begins[arg] + i); };
  auto parts = parts_of(placing.lengths[kLeaders], item);
  if (parts.empty()) return {};
  for (auto& part : parts) {
    if (!lie_alike(part, placing.lengths, may_move, item)) return {};
    for (auto input : placing.numbers) {
      if (!serves(item_of(c, input), part.mesh)) return {};
    }
  }
  return [op, parts](Stack& stack) { run_fused(op, parts, stack); };
}

}  // namespace

void add_fused(RuleTable& t) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (auto* name : {"aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_", "aten::_fused_adagrad_"}) {
    for (auto& op : dispatcher.getAllOpNames()) {
      if (op.name != name) continue;
      auto handle = *dispatcher.findSchema(op);
      t.lower(c10::toString(op), [handle](const CutCall& c) { return fused_step(handle, c); });
    }
  }
}

}  // namespace intarsia
