#include "intarsia/rules/table.h"

#include <unordered_map>

namespace intarsia {
namespace {

// All overloads of each op name.
const std::unordered_map<std::string, std::vector<c10::OperatorHandle>>& overloads() {
  static auto* index = [] {
    auto* result = new std::unordered_map<std::string, std::vector<c10::OperatorHandle>>;
    auto& dispatcher = c10::Dispatcher::singleton();
    for (auto& name : dispatcher.getAllOpNames()) {
      if (auto handle = dispatcher.findSchema(name)) (*result)[name.name].push_back(*handle);
    }
    return result;
  }();
  return *index;
}

// The arguments that are not out= arguments.
std::vector<const c10::Argument*> proper_arguments(const c10::FunctionSchema& schema) {
  std::vector<const c10::Argument*> result;
  for (auto& argument : schema.arguments()) {
    if (!argument.is_out()) result.push_back(&argument);
  }
  return result;
}

bool is_functional(const c10::FunctionSchema& schema) {
  for (auto& argument : schema.arguments()) {
    if (argument.alias_info() && argument.alias_info()->isWrite()) return false;
  }
  return true;
}

bool same_arguments(const c10::FunctionSchema& a, const c10::FunctionSchema& b) {
  auto left = proper_arguments(a), right = proper_arguments(b);
  if (left.size() != right.size()) return false;
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i]->name() != right[i]->name() || *left[i]->type() != *right[i]->type()) return false;
  }
  return true;
}

}  // namespace

std::string base_op_of(const c10::OperatorName& op) {
  auto handle = c10::Dispatcher::singleton().findSchema(op);
  if (!handle || is_functional(handle->schema())) return "";
  auto name = op.name;
  if (name.back() == '_') name.pop_back();
  auto found = overloads().find(name);
  if (found == overloads().end()) return "";
  for (auto& candidate : found->second) {
    if (is_functional(candidate.schema()) && same_arguments(handle->schema(), candidate.schema())) {
      return c10::toString(candidate.operator_name());
    }
  }
  return "";
}

const Rule* RuleTable::find(const c10::OperatorName& op) const {
  auto own = rules_.find(c10::toString(op));
  if (own == rules_.end()) own = rules_.find(base_op_of(op));
  return own == rules_.end() ? nullptr : &own->second;
}

const Decomposition* RuleTable::find_decomposition(const c10::OperatorName& op) const {
  auto own = decompositions_.find(c10::toString(op));
  return own == decompositions_.end() ? nullptr : &own->second;
}

RuleTable& rule_table() {
  static auto* table = [] {
    auto* t = new RuleTable;
    add_pointwise_rules(*t);
    add_matmul_rules(*t);
    add_reduction_rules(*t);
    add_view_rules(*t);
    add_factory_rules(*t);
    add_loss_rules(*t);
    add_whole_rules(*t);
    add_convolution_rules(*t);
    add_pool_rules(*t);
    add_pad_rules(*t);
    add_resample_rules(*t);
    return t;
  }();
  return *table;
}

}  // namespace intarsia
