// foreach ops: elementwise over lists, see Note [Elements of lists].

#include <ATen/ATen.h>

#include "intarsia/dispatch/numbers.h"
#include "intarsia/dispatch/run.h"
#include "intarsia/ops/lists/lists.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/policy.h"

namespace intarsia {
namespace {

// The tensor on the meta device; but one that holds numbers stays as it is, since some ops read them.
at::Tensor without_data(const at::Tensor& tensor, bool holds_numbers) {
  if (!tensor.defined()) return tensor;
  at::TensorOptions options(tensor.scalar_type());
  if (holds_numbers) return is_dtensor(tensor) ? at::ones(tensor.sizes(), options) : tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), options.device(at::kMeta));
}

// The plain op raises its errors before anything is written: it runs on tensors without data.
void check_as_plain(const c10::OperatorHandle& op, Stack stack) {
  for (size_t arg = 0; arg < stack.size(); ++arg) {
    if (stack[arg].isTensor()) stack[arg] = without_data(stack[arg].toTensor(), true);
    if (!stack[arg].isTensorList()) continue;
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : stack[arg].toTensorList()) {
      list.push_back(without_data(tensor, arg != kLeaders && tensor.dim() == 0));
    }
    stack[arg] = std::move(list);
  }
  try {
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {  // it cannot run without data
  }
}

// Checks whether the elements i of all lists go together.
void check_element(const c10::OperatorHandle& op, const Lists& lists, size_t i) {
  auto leader = item_of(lists[kLeaders][i]);
  auto mesh = leader.layout ? leader.layout->mesh() : DeviceMesh();
  for (size_t arg = kLeaders + 1; arg < lists.size(); ++arg) {
    if (lists[arg].empty()) continue;
    auto own = item_of(lists[arg][i]);
    bool number = own.defined && c10::multiply_integers(own.sizes) == 1;
    if (!own.defined || (!own.layout && (number || !leader.layout || plain_tensor_policy() != PlainTensors::error)))
      continue;
    if (own.layout && leader.layout && own.layout->mesh() == mesh) continue;
    // See Note [State from before]: the op on the element compares it and makes it distributed.
    bool follows = own.layout && !leader.layout && own.sizes == leader.sizes && layout_of_plain_state(own.layout);
    if (follows) continue;
    if (own.layout && number && (!mesh.defined() || is_number_of(own.layout->mesh(), mesh))) continue;
    auto name = [](const ListItem& item) {
      return item.layout ? "on " + item.layout->mesh().text() : std::string("a plain tensor");
    };
    TORCH_CHECK(false, "[", op.operator_name(), "] element ", i, " of its lists is ", name(leader), ", of shape ",
                leader.sizes, ", and meets one that is ", name(own), ", of shape ", own.sizes,
                ". Elements that meet must be on one mesh: use distribute_tensor or redistribute.");
  }
}

// Whether the op surely accepts all elements if it accepts one: floating-point elements of one dtype, as in optimizers.
bool is_uniform(const Lists& lists) {
  auto& leaders = lists[kLeaders];
  for (auto& leader : leaders) {
    if (!leader.defined() || !at::isFloatingType(leader.scalar_type())) return false;
  }
  for (auto& list : lists) {
    if (!list.empty() && list.size() != leaders.size()) return false;
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].defined() && list[i].scalar_type() != leaders[i].scalar_type()) return false;
    }
  }
  return true;
}

// Runs each part in one call; false if some elements cannot be handled so.
bool run_by_parts(const c10::OperatorHandle& op, Stack& stack, const Lists& lists) {
  std::vector<size_t> lengths;
  for (auto& list : lists) lengths.push_back(list.size());
  auto item = [&](size_t arg, size_t i) { return item_of(lists[arg][i]); };
  auto parts = parts_of(lengths[kLeaders], item);
  for (auto& part : parts) {
    if (!lie_alike(part, lengths, false, item)) return false;
    for (auto& value : stack) {
      if (value.isTensor() && !serves(item_of(value.toTensor()), part.mesh)) return false;
    }
  }
  std::vector<at::Tensor> results(lengths[kLeaders]);
  for (auto& part : parts) {
    auto made = run_on_part(op, stack, part);
    for (size_t i = 0; i < made.size(); ++i) results[part.elements[i]] = made[i];
  }
  stack = op.schema().returns().empty() ? Stack() : Stack{c10::List<at::Tensor>(results)};
  return true;
}

// Lists are long: looking at the elements takes less time than making a key.
void run_foreach(const c10::OperatorHandle& op, Stack& stack) {
  auto lists = lists_of(stack);
  bool uniform = is_uniform(lists);
  if (!uniform) check_as_plain(op, stack);
  if (!lists[kLeaders].empty() && run_by_parts(op, stack, lists)) return;
  if (uniform) check_as_plain(op, stack);
  for (size_t i = 0; i < lists[kLeaders].size(); ++i) check_element(op, lists, i);
  // LibTorch's own loop over single tensors: redispatching with a key without kernels leads there.
  PlainElementScope one_by_one;
  op.redispatchBoxed(kComposite, &stack);
}

bool is_one_of(const std::string& name, std::initializer_list<const char*> ops) {
  for (std::string op : ops) {
    if (name == "aten::" + op || name == "aten::" + op + "_") return true;
  }
  return false;
}

}  // namespace

void add_foreach(RuleTable& t) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (auto& name : dispatcher.getAllOpNames()) {
    auto handle = dispatcher.findSchema(name);
    if (!handle || foreach_base_of(name).empty()) continue;
    auto& arguments = handle->schema().arguments();
    if (arguments.empty() || arguments.back().is_out() || arguments[0].type()->str().find("Tensor[]") != 0) continue;
    if (is_one_of(name.name, {"_foreach_norm", "_foreach_max", "_foreach_powsum", "_foreach_mm"})) continue;
    t.always(c10::toString(name), [handle = *handle](Stack& stack) { run_foreach(handle, stack); });
  }
}

}  // namespace intarsia
