#include "intarsia/data_parallel/fully_shard/param_op_traits.h"

#include <set>
#include <string>
#include <unordered_map>

namespace intarsia {
namespace {

// These are about the handle and its history, not about values.
bool is_about_the_handle(const std::string& name) {
  static const std::set<std::string> names = {
      "aten::detach",       "aten::detach_",     "aten::alias",        "aten::requires_grad_",
      "aten::set_data",     "aten::data",        "aten::is_leaf",      "aten::output_nr",
      "aten::_version",     "aten::retain_grad", "aten::retains_grad", "aten::_has_compatible_shallow_copy_type",
      "aten::is_same_size", "aten::size",        "aten::stride",       "aten::sym_size",
      "aten::sym_stride",   "aten::sym_numel"};
  return names.count(name) > 0;
}

bool makes_one_like_it(const std::string& name) {
  static const std::set<std::string> names = {
      "aten::empty_like", "aten::zeros_like",        "aten::ones_like", "aten::full_like", "aten::rand_like",
      "aten::randn_like", "aten::randint_like",      "aten::new_empty", "aten::new_zeros", "aten::new_ones",
      "aten::new_full",   "aten::new_empty_strided", "aten::clone"};
  return names.count(name) > 0;
}

bool is_list_of_tensors(const c10::Argument& argument) {
  return argument.type()->isSubtypeOf(*c10::ListType::ofTensors());
}

// Ops of optimizers: _foreach_norm(Tensor[] self) -> Tensor[].
bool maps_lists(const c10::FunctionSchema& schema) {
  auto &given = schema.arguments(), &made = schema.returns();
  return !given.empty() && is_list_of_tensors(given[0]) && made.size() == 1 && is_list_of_tensors(made[0]);
}

bool returns_a_view(const c10::FunctionSchema& schema) {
  for (auto& result : schema.returns()) {
    if (result.alias_info() && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

}  // namespace

const ParamOpTraits& param_traits_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, ParamOpTraits> known;
  auto& schema = op.schema();  // lives as long as the op
  auto found = known.find(&schema);
  if (found != known.end()) return found->second;
  bool maps = maps_lists(schema), casts = schema.name() == "aten::to" || schema.name() == "aten::_to_copy";
  return known
      .try_emplace(&schema, ParamOpTraits{is_about_the_handle(schema.name()), returns_a_view(schema),
                                          makes_one_like_it(schema.name()) || maps, schema.is_mutable(), maps, casts,
                                          schema.name().rfind("aten::new_", 0) == 0})
      .first->second;
}

}  // namespace intarsia
