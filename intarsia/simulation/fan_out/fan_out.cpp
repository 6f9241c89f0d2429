#include "intarsia/simulation/fan_out/fan_out.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/enum_tag.h>

#include "intarsia/dispatch/run.h"
#include "intarsia/dispatch/twin_slots.h"
#include "intarsia/dispatch/watch.h"
#include "intarsia/dispatch/without_data.h"
#include "intarsia/libtorch/version_counter.h"
#include "intarsia/simulation/fan_out/fan_out_draw.h"
#include "intarsia/simulation/fan_out/fan_out_write.h"
#include "intarsia/simulation/per_rank/number.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/simulation/twins/twins.h"

namespace intarsia {
namespace {

bool is_sym_int(const c10::TypePtr& type) { return type->kind() == c10::TypeKind::SymIntType; }
bool is_sym_bool(const c10::TypePtr& type) { return type->kind() == c10::TypeKind::SymBoolType; }

size_t slots_in(const c10::IValue& value) {
  if (value.isTensor()) return is_per_rank(value.toTensor()) ? values_of(value.toTensor()).size() : 0;
  size_t count = 0;
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) count = std::max(count, slots_in(c10::IValue(tensor)));
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) count = std::max(count, slots_in(item));
  } else {
    count = rank_count(value);
  }
  return count;
}

bool differs(const c10::IValue& value) {
  if (value.isTensor()) return is_per_rank(value.toTensor()) && values_differ(value.toTensor());
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      if (differs(c10::IValue(tensor))) return true;
    }
    return false;
  }
  if (value.isList()) return std::any_of(value.toListRef().begin(), value.toListRef().end(), differs);
  return rank_count(value) > 0;
}

at::Tensor joined(const std::vector<c10::IValue>& values, const c10::OperatorHandle& op) {
  if (!values[0].toTensor().defined()) return values[0].toTensor();
  Shards tensors;
  for (auto& value : values) tensors.push_back(value.toTensor());
  try {
    return per_rank(std::move(tensors));
  } catch (c10::Error& error) {
    error.add_context(c10::str("as the result of ", op.operator_name()));
    throw;
  }
}

c10::IValue joined_list(const std::vector<c10::IValue>& values, const c10::OperatorHandle& op) {
  c10::List<at::Tensor> list;
  for (size_t i = 0; i < values[0].toTensorList().size(); ++i) {
    std::vector<c10::IValue> items;
    for (auto& value : values) items.push_back(at::Tensor(value.toTensorList().get(i)));
    list.push_back(joined(items, op));
  }
  return list;
}

}  // namespace

size_t slots_of(c10::ArrayRef<c10::IValue> args) {
  size_t slots = 0;
  for (auto& arg : args) slots = std::max(slots, slots_in(arg));
  return slots;
}

bool differ_by_rank(c10::ArrayRef<c10::IValue> args) { return std::any_of(args.begin(), args.end(), differs); }

bool without_data(c10::ArrayRef<c10::IValue> args) {
  for (auto& arg : args) {
    for (auto& tensor : tensors_in(arg)) {
      if (is_per_rank(tensor)) return values_of(tensor)[0].is_meta();
    }
  }
  return false;
}

at::Tensor tensor_at(const at::Tensor& tensor, size_t slot, bool without_data) {
  auto value = value_at(tensor, slot);
  return without_data && value.defined() && value.dim() > 0 && !value.is_meta() ? value.detach().to(at::kMeta) : value;
}

std::vector<at::Tensor> tensors_in(const c10::IValue& arg) {
  if (arg.isTensor()) return {arg.toTensor()};
  if (arg.isTensorList()) return arg.toTensorVector();
  std::vector<at::Tensor> tensors;
  if (!arg.isList()) return tensors;
  for (const c10::IValue& item : arg.toListRef()) {
    if (item.isTensor()) tensors.push_back(item.toTensor());
  }
  return tensors;
}

c10::IValue argument_at(const c10::IValue& arg, size_t slot, const LocalOf& local) {
  if (arg.isTensor()) return local(arg.toTensor());
  if (arg.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : arg.toTensorList()) list.push_back(local(tensor));
    return list;
  }
  if (arg.isSymIntList()) {
    c10::List<int64_t> list;
    for (const c10::IValue& item : arg.toListRef()) list.push_back(number_at(item, slot).toInt());
    return list;
  }
  if (arg.isList()) {
    auto list = arg.toList().copy();
    for (size_t i = 0; i < list.size(); ++i) list.set(i, argument_at(list.get(i), slot, local));
    return list;
  }
  return number_at(arg, slot);
}

c10::IValue join(const std::vector<Arguments>& results, size_t r, const c10::OperatorHandle& op) {
  std::vector<c10::IValue> values;
  for (auto& local : results) values.push_back(local[r]);
  auto& first = values[0];
  if (first.isTensor()) return joined(values, op);
  if (first.isTensorList()) {
    check_equal_lists(results, r, op);
    return joined_list(values, op);
  }
  auto& type = op.schema().returns()[r].real_type();
  if (is_sym_int(type)) {
    std::vector<int64_t> numbers;
    for (auto& value : values) numbers.push_back(value.toInt());
    return per_rank_int(numbers);
  }
  if (is_sym_bool(type)) {
    std::vector<bool> answers;
    for (auto& value : values) answers.push_back(value.toBool());
    return per_rank_bool(answers);
  }
  for (auto& value : values) {
    TORCH_CHECK_VALUE(value == first, "[", op.operator_name(), "] the simulated ranks give different values, ", first,
                      " and ", value, ", where one is asked for. Take the values apart with shards_of or values_of.");
  }
  return first;
}

void check_equal_lists(const std::vector<Arguments>& results, size_t r, const c10::OperatorHandle& op) {
  auto size = results[0][r].toTensorList().size();
  for (auto& of_rank : results) {
    auto other = of_rank[r].toTensorList().size();
    TORCH_CHECK_VALUE(other == size, "[", op.operator_name(), "] gives ", size, " tensors on one simulated rank and ",
                      other, " on another. Take the ranks' tensors apart with shards_of or values_of.");
  }
}

std::vector<size_t> written_arguments(const c10::OperatorHandle& op) {
  std::vector<size_t> written;
  for (size_t i = 0; i < op.schema().arguments().size(); ++i) {
    auto* alias = op.schema().arguments()[i].alias_info();
    if (alias && alias->isWrite()) written.push_back(i);
  }
  return written;
}

int64_t argument_returned(const c10::FunctionSchema& schema, size_t r) {
  auto* alias = schema.returns()[r].alias_info();
  if (!alias || !alias->isWrite()) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    auto* own = schema.arguments()[i].alias_info();
    if (own && own->beforeSets() == alias->beforeSets()) return static_cast<int64_t>(i);
  }
  return -1;
}

int64_t argument_viewed(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> args, size_t r) {
  auto names = [](const c10::AliasInfo& alias) {
    return alias.containedTypes().empty() ? alias.beforeSets() : alias.containedTypes()[0].beforeSets();
  };
  auto* alias = schema.returns()[r].alias_info();
  if (!alias) return -1;
  for (size_t i = 0; i < args.size(); ++i) {
    auto* own = schema.arguments()[i].alias_info();
    bool same = own && args[i].isTensor() && own->beforeSets() == names(*alias);
    if (same && is_per_rank(args[i].toTensor())) return static_cast<int64_t>(i);
  }
  return -1;
}

// Views share a version counter with what they view. Below autograd, nothing else takes care of that.
static void share_counters(const at::Tensor& viewed, const std::vector<Arguments>& results, size_t r) {
  for (size_t slot = 0; slot < results.size(); ++slot) {
    auto value = value_at(viewed, slot);
    for (auto& tensor : tensors_in(results[slot][r])) {
      if (tensor.defined() && tensor.is_alias_of(value)) share_counter(tensor, value);
    }
  }
}

Arguments pop_arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  auto first = stack.end() - static_cast<int64_t>(op.schema().arguments().size());
  Arguments args(first, stack.end());
  stack.erase(first, stack.end());
  return args;
}

static std::vector<at::Tensor> all_tensors_in(const Arguments& args) {
  std::vector<at::Tensor> all;
  for (auto& arg : args) {
    for (auto& tensor : tensors_in(arg)) all.push_back(tensor);
  }
  return all;
}

// For each rank, the first one that gets the same arguments: twins, and the same numbers. Ops of other libraries may
// have side effects, so every rank calls them.
static std::vector<size_t> first_given_the_same(const c10::OperatorHandle& op, const Arguments& args,
                                                const std::vector<Arguments>& given) {
  std::vector<std::vector<at::Tensor>> tensors;
  for (auto& local : given) tensors.push_back(all_tensors_in(local));
  bool once = op.schema().name().rfind("aten::", 0) == 0 && !op.hasTag(at::Tag::nondeterministic_seeded);
  auto hash = [&](size_t slot) {
    uint64_t sum = once ? 0 : slot;
    for (auto& tensor : tensors[slot]) sum = 31 * sum + twin_hash(tensor);
    return sum;
  };
  auto same = [&](size_t i, size_t j) {
    for (size_t arg = 0; arg < args.size(); ++arg) {
      bool numbers = slots_of(args[arg]) > 0 && tensors_in(args[arg]).empty();
      if (numbers && given[i][arg] != given[j][arg]) return false;
    }
    return once && std::equal(tensors[i].begin(), tensors[i].end(), tensors[j].begin(), tensors[j].end(), are_twins);
  };
  return first_alike(given.size(), hash, same);
}

static void run_on_all(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  LazyValuesScope lazy;
  at::AutoDispatchBelowADInplaceOrView guard;
  note_leaf();
  auto args = pop_arguments(op, *stack);
  auto written = written_arguments(op);
  std::vector<Arguments> results;
  auto slots = slots_of(args);
  PlainTargets targets(op, args, slots);
  bool by_form = without_data(args);
  std::vector<Arguments> given(slots);
  for (size_t slot = 0; slot < slots; ++slot) {
    for (auto& arg : args) {
      given[slot].push_back(
          argument_at(arg, slot, [&](const at::Tensor& tensor) { return tensor_at(tensor, slot, by_form); }));
    }
  }
  bool may_be_once = written.empty() && !by_form && !writes_unannounced(op, args);
  auto first = may_be_once ? first_given_the_same(op, args, given) : std::vector<size_t>();
  DrawnAlike draws(op, args);
  for (size_t slot = 0; slot < slots; ++slot) {
    draws.begin(slot);
    auto& local = results.emplace_back();
    if (first.empty() || first[slot] == slot) {
      local = given[slot];
      by_form ? call_without_data(op, local) : op.callBoxed(local);
      continue;
    }
    auto from = all_tensors_in(given[first[slot]]), to = all_tensors_in(given[slot]);
    for (auto& result : results[first[slot]]) local.push_back(made_from(result, from, to));
  }
  draws.finish();
  for (auto i : written) {
    for (auto& tensor : tensors_in(args[i])) {
      if (!tensor.defined()) continue;
      for (auto& value : values_of(tensor)) {
        if (!value.is_inference()) value.unsafeGetTensorImpl()->bump_version();
      }
      set_values(tensor, values_of(tensor));  // resize_ and the like change the form
    }
  }
  targets.finish();
  for (size_t r = 0; r < op.schema().returns().size(); ++r) {
    auto same = argument_returned(op.schema(), r), viewed = argument_viewed(op.schema(), args, r);
    if (same < 0 && viewed >= 0) share_counters(args[viewed].toTensor(), results, r);
    stack->push_back(same >= 0 ? args[same] : join(results, r, op));
  }
}

void fan_out(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (C10_LIKELY(!OpWatch::open())) return run_on_all(op, stack);
  OpWatch::run(op.schema(), *stack, [&] { run_on_all(op, stack); });
}

}  // namespace intarsia
