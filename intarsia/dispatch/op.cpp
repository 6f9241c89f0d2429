#include "intarsia/dispatch/op.h"

#include <algorithm>

#include <ATen/core/enum_tag.h>

#include "intarsia/comm/mix_hash.h"

namespace intarsia {
namespace {

bool is_list_of_tensors(const c10::TypePtr& type) {
  auto list = type->cast<c10::ListType>();
  if (!list) {
    auto optional = type->cast<c10::OptionalType>();
    return optional && is_list_of_tensors(optional->getElementType());
  }
  auto element = list->getElementType();
  auto optional = element->cast<c10::OptionalType>();
  return (optional ? optional->getElementType() : element)->kind() == c10::TypeKind::TensorType;
}

ArgKind kind_of(const Traits& traits, const c10::Argument& argument) {
  auto type = argument.type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (type->kind() == c10::TypeKind::TensorType) return ArgKind::tensor;
  if (is_list_of_tensors(type)) return ArgKind::tensor_list;
  // Numbers decide values, not layouts, with few exceptions: learning rates change in every step and must not fill the
  // cache.
  auto kind = type->kind();
  auto& steering = traits.steered_by;
  if (std::find(steering.begin(), steering.end(), argument.name()) != steering.end()) return ArgKind::value;
  return kind == c10::TypeKind::NumberType || kind == c10::TypeKind::FloatType ? ArgKind::number : ArgKind::value;
}

// What a return shares memory with. Lists of views (split, unbind) have it on their elements.
const std::unordered_set<c10::Symbol>& alias_sets(const c10::AliasInfo& alias) {
  if (!alias.beforeSets().empty() || alias.containedTypes().empty()) return alias.beforeSets();
  return alias.containedTypes()[0].beforeSets();
}

c10::OperatorHandle functional_of(const c10::OperatorHandle& handle) {
  auto base = base_op_of(handle.operator_name());
  if (base.empty()) return handle;
  auto dot = base.find('.');
  auto overload = dot == std::string::npos ? "" : base.substr(dot + 1);
  auto found = c10::Dispatcher::singleton().findOp({base.substr(0, dot), overload});
  return found ? *found : handle;
}

}  // namespace

Op::Op(const c10::OperatorHandle& handle)
    : handle(handle), name(c10::toString(handle.operator_name())), functional(functional_of(handle)) {
  auto& schema = handle.schema();
  auto& table = rule_table();
  rule = table.find(handle.operator_name());
  traits = &table.traits_of(handle.operator_name());
  planner = table.find_planner(handle.operator_name());
  always = table.find_lowering(handle.operator_name());
  // Attention on CPU has the tag because of its dropout, which its kernel rejects.
  is_random = handle.hasTag(at::Tag::nondeterministic_seeded) && !(rule && !rule->draws);
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    auto& argument = schema.arguments()[i];
    kinds.push_back(kind_of(*traits, argument));
    if (argument.alias_info() && argument.alias_info()->isWrite()) written.push_back(i);
  }
  for (auto& result : schema.returns()) {
    int is = -1, views = -1;
    for (size_t i = 0; result.alias_info() && i < schema.arguments().size(); ++i) {
      auto* alias = schema.arguments()[i].alias_info();
      if (!alias || alias->beforeSets() != alias_sets(*result.alias_info())) continue;
      (alias->isWrite() ? is : views) = i;
    }
    returns_arg.push_back(is);
    views_arg.push_back(views);
  }
  if (auto arg = written.empty() ? views_arg.empty() ? -1 : views_arg[0] : written[0]; arg >= 0) {
    shown = std::count(kinds.begin(), kinds.begin() + arg, ArgKind::tensor);
  }
  is_out = schema.arguments().size() > 0 && !written.empty() && schema.arguments()[written[0]].is_out();
  functional_args = is_out ? written[0] : schema.arguments().size();
  auto& base = functional.operator_name().name;
  hash = hash_text(1, base.c_str());
  keeps_value = table.traits_of(functional.operator_name()).keeps_value;
  keeps_note = traits->keeps_note && !is_out;
  changes_form = handle.hasTag(at::Tag::inplace_view);
  may_be_direct = !changes_form && !is_out && !is_random && written.size() <= 1 && !schema.returns().empty() &&
                  std::count(kinds.begin(), kinds.end(), ArgKind::tensor_list) == 0;
  for (size_t r = 0; r < schema.returns().size(); ++r) {
    may_be_direct = may_be_direct && schema.returns()[r].type()->kind() == c10::TypeKind::TensorType &&
                    (written.empty() || returns_arg[r] == written[0]);
  }
  if (rule) {
    for (auto& arg : rule->local.size_args) {
      if (auto index = schema.argumentIndexWithName(arg)) size_args.push_back(*index);
    }
  }
}

}  // namespace intarsia
