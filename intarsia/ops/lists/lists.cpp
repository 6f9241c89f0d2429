#include "intarsia/ops/lists/lists.h"

#include <ATen/ATen.h>

#include "intarsia/dispatch/numbers.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

// A schema marks the elements of a list as written, or the list itself.
bool writes(const c10::AliasInfo& alias) {
  return alias.isWrite() || (!alias.containedTypes().empty() && alias.containedTypes()[0].isWrite());
}

// The elements of a list of tensors or numbers.
c10::IValue picked(const c10::IValue& list, const std::vector<size_t>& elements) {
  auto items = list.toListRef();
  c10::impl::GenericList some(list.toList().elementType());
  for (auto i : elements) some.push_back(items[i]);
  return some;
}

// The arguments for some elements: lists as long as the leaders are reduced to them.
Stack with_elements(const Stack& stack, const std::vector<size_t>& elements) {
  auto count = stack[kLeaders].toListRef().size();
  Stack some = stack;
  if (elements.size() == count) return some;
  for (auto& value : some) {
    bool of_elements = value.isList() && value.toListRef().size() == count && !value.isIntList() && !value.isBoolList();
    if (of_elements) value = picked(value, elements);
  }
  return some;
}

template <class Local>
void make_local(Stack& stack, Local local) {
  for (auto& value : stack) {
    if (value.isTensor()) {
      value = local(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      list.reserve(value.toListRef().size());
      for (const at::Tensor& tensor : value.toTensorList()) list.push_back(local(tensor));
      value = std::move(list);
    }
  }
}

std::vector<at::Tensor> results_of(const Stack& stack) {
  return stack.empty() || !stack[0].isTensorList() ? std::vector<at::Tensor>() : stack[0].toTensorVector();
}

std::vector<at::Tensor> run_plain(const c10::OperatorHandle& op, Stack stack) {
  auto name = c10::toString(op.operator_name());
  make_local(stack, [&](const at::Tensor& tensor) {
    return is_dtensor(tensor) ? number_on_no_mesh(tensor, name.c_str()) : tensor;
  });
  op.callBoxed(stack);
  return results_of(stack);
}

// Per slot: the results, one per leader.
std::vector<std::vector<at::Tensor>> call_on_slots(const c10::OperatorHandle& op, const Stack& stack,
                                                   const DeviceMesh& mesh) {
  std::vector<std::vector<at::Tensor>> results;
  auto slots = mesh.slots().size();
  for (size_t slot = 0; slot < slots; ++slot) {
    auto local = stack;
    // If simulated ranks shared one step counter, each of them would increment it: each rank gets a separate one.
    make_local(local, [&](const at::Tensor& tensor) {
      auto mine = at_slot(tensor, mesh, slot);
      return slot + 1 < slots && mine.is_same(tensor) && mine.defined() ? mine.clone() : mine;
    });
    op.callBoxed(local);
    results.push_back(results_of(local));
  }
  return results;
}

void note_writes(const c10::OperatorHandle& op, const Stack& stack) {
  for (size_t arg = 0; arg < stack.size(); ++arg) {
    auto* alias = op.schema().arguments()[arg].alias_info();
    if (!stack[arg].isTensorList() || !alias || !writes(*alias)) continue;
    for (const at::Tensor& tensor : stack[arg].toTensorList()) {
      if (is_dtensor(tensor)) body_of(tensor).written();
    }
  }
}

}  // namespace

ListItem item_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {false, {}, nullptr, at::ScalarType::Undefined};
  auto* layout = is_dtensor(tensor) ? body_of(tensor).layout : nullptr;
  bool uneven = !layout && is_per_rank(tensor) && values_differ(tensor);  // its sizes are per-rank numbers
  return {true, uneven ? at::IntArrayRef() : tensor.sizes(), layout, tensor.scalar_type()};
}

bool serves(const ListItem& item, const DeviceMesh& mesh) {
  if (!item.defined) return true;
  bool number = item.sizes.size() <= 1 && c10::multiply_integers(item.sizes) == 1;
  if (!number || !item.layout) return number;
  if (!item.layout->is_replicated()) return false;
  return !mesh.defined() || item.layout->mesh() == mesh || is_number_of(item.layout->mesh(), mesh);
}

bool is_partner(const ListItem& item, const ListItem& leader) {
  if (!item.defined || item.sizes != leader.sizes || !item.layout != !leader.layout) return false;
  return !item.layout || item.layout->mesh() == leader.layout->mesh();
}

Lists lists_of(const Stack& stack) {
  Lists lists(stack.size());
  for (size_t arg = 0; arg < stack.size(); ++arg) {
    if (stack[arg].isTensorList()) lists[arg] = stack[arg].toTensorVector();
  }
  return lists;
}

at::Tensor at_slot(const at::Tensor& tensor, const DeviceMesh& mesh, size_t slot) {
  if (!is_dtensor(tensor)) return tensor.defined() ? value_at(tensor, slot) : tensor;
  auto& body = body_of(tensor);
  if (body.layout->mesh() == mesh) return body.shards()[slot];
  return body_of(number_on(tensor, mesh)).shards()[slot];
}

std::vector<at::Tensor> run_on_part(const c10::OperatorHandle& op, const Stack& stack, const ListPart& part) {
  auto some = with_elements(stack, part.elements);
  if (!part.mesh.defined()) return run_plain(op, std::move(some));
  auto results = call_on_slots(op, some, part.mesh);
  note_writes(op, some);
  std::vector<at::Tensor> wrapped;
  if (op.schema().returns().empty()) return wrapped;
  auto leaders = some[kLeaders].toTensorVector();
  for (size_t i = 0; i < leaders.size(); ++i) {
    Shards shards;
    for (auto& of_slot : results) shards.push_back(of_slot[i]);
    auto dtype = shards[0].dtype();
    wrapped.push_back(wrap(std::move(shards), &layout_of(leaders[i]), leaders[i].sizes(),
                           at::infer_dense_strides(leaders[i].sizes(), leaders[i].strides()), dtype));
  }
  return wrapped;
}

}  // namespace intarsia
