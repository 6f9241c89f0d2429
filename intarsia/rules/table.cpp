#include "intarsia/rules/table.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include <torch/version.h>

#include "intarsia/start.h"

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

// add for add_; Python's operators differ: __lshift__ for __ilshift__.
std::string functional_name(const std::string& name) {
  if (!name.ends_with("__")) return name.back() == '_' ? name.substr(0, name.size() - 1) : name;
  const std::string in_place = "aten::__i";
  return name.rfind(in_place, 0) == 0 ? "aten::__" + name.substr(in_place.size()) : name;
}

}  // namespace

std::string base_op_of(const c10::OperatorName& op) {
  auto handle = c10::Dispatcher::singleton().findSchema(op);
  if (!handle || is_functional(handle->schema())) return "";
  auto found = overloads().find(functional_name(op.name));
  if (found == overloads().end()) return "";
  for (auto& candidate : found->second) {
    if (is_functional(candidate.schema()) && same_arguments(handle->schema(), candidate.schema())) {
      return c10::toString(candidate.operator_name());
    }
  }
  return "";
}

constexpr auto kForeach = "aten::_foreach_";

bool is_foreach(const c10::OperatorName& op) { return op.name.rfind(kForeach, 0) == 0; }

// Foreach ops name their overloads after the second operand: List means Tensor in the op of single tensors.
std::string foreach_base_of(const c10::OperatorName& op) {
  if (!is_foreach(op)) return "";
  auto name = "aten::" + op.name.substr(std::strlen(kForeach));
  if (name.back() == '_') name.pop_back();
  auto overload = op.overload_name;
  if (auto out = overload.find("out"); out != std::string::npos) overload = overload.substr(0, out ? out - 1 : 0);
  if (overload == "ScalarList") overload = "Scalar";
  for (auto candidate : {overload, std::string(overload == "List" ? "Tensor" : overload), std::string("Tensor"),
                         std::string("Scalar"), std::string("self"), std::string()}) {
    auto found = c10::toString(c10::OperatorName(name, candidate));
    if (c10::Dispatcher::singleton().findSchema({name, candidate})) return found;
    if (candidate == "Scalar" && overload == "Scalar" &&
        c10::Dispatcher::singleton().findSchema({name, "Tensor_Scalar"})) {
      return name + ".Tensor_Scalar";
    }
  }
  return "";
}

// An op of LibTorch or of a library that is loaded.
static bool exists(const std::string& op) {
  auto dot = op.find('.');
  auto overload = dot == std::string::npos ? "" : op.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchema({op.substr(0, dot), overload}).has_value();
}

static void check_exists(const std::string& op) {
  TORCH_CHECK_VALUE(exists(op), "[rule_table] there is no op ", op,
                    ". Define it before its rule, and name the overload too, as in aten::add.Tensor.");
}

void RuleTable::add(const std::string& op, Rule rule) {
  check_exists(op);
  TORCH_CHECK_VALUE(rule.rows, "[rule_table] the rule of ", op,
                    " has no rows. Make it with a builder: see builders.h.");
  TORCH_CHECK_VALUE(rules_.emplace(op, std::move(rule)).second, "[rule_table] ", op, " has a rule already.");
}

void RuleTable::add(std::initializer_list<const char*> ops, const Rule& rule) {
  for (auto* op : ops) add(op, rule);
}

bool has_this_libtorch(const Versions& versions) {
  return TORCH_VERSION_MAJOR == 2 && versions.since <= TORCH_VERSION_MINOR && TORCH_VERSION_MINOR <= versions.until;
}

void RuleTable::add(const std::string& op, Rule rule, const Versions& versions) {
  if (has_this_libtorch(versions)) return add(op, std::move(rule));
  TORCH_CHECK_VALUE(!exists(op), "[rule_table] ", op, " is said to be in LibTorch 2.", versions.since, " to 2.",
                    versions.until, ", but ", TORCH_VERSION, " has it. Correct its versions.");
}

void RuleTable::replace(const std::string& op, Rule rule) {
  check_exists(op);
  rules_[op] = std::move(rule);
  if (auto planner = planners_.find(op); planner != planners_.end())
    planner->second = [](const CutCall&) { return Lowering(); };
  if (auto always = lowerings_.find(op); always != lowerings_.end()) always->second = {};
}

void RuleTable::lower(const std::string& op, Planner planner) {
  check_exists(op);
  TORCH_CHECK_VALUE(planners_.emplace(op, std::move(planner)).second, "[rule_table] ", op, " has a planner already.");
}

void RuleTable::always(const std::string& op, Lowering lowering, Lowering if_advised) {
  check_exists(op);
  Always always{std::move(lowering), std::move(if_advised)};
  TORCH_CHECK_VALUE(lowerings_.emplace(op, std::move(always)).second, "[rule_table] ", op, " has a lowering already.");
}

void RuleTable::register_later(const std::string& op, bool composite, Register add) {
  check_exists(op);
  if (composite) composites_.insert(op);
  brought_.insert(op);
  later_.push_back([name = op.substr(op.find("::") + 2), composite, add = std::move(add)](auto& aten, auto& autograd) {
    if (composite) add(aten, name.c_str());
    add(autograd, name.c_str());
  });
}

void RuleTable::register_kernels(torch::Library& aten, torch::Library& aten_autograd) const {
  for (auto& kernel : later_) kernel(aten, aten_autograd);
}

void RuleTable::register_per_rank_kernels(torch::Library& autograd) const {
  for (auto& kernel : per_rank_) kernel(autograd);
}

const Rule* RuleTable::find(const c10::OperatorName& op) const {
  auto own = rules_.find(c10::toString(op));
  if (own == rules_.end()) own = rules_.find(base_op_of(op));
  return own == rules_.end() ? nullptr : &own->second;
}

const Planner* RuleTable::find_planner(const c10::OperatorName& op) const {
  auto own = planners_.find(c10::toString(op));
  return own == planners_.end() ? nullptr : &own->second;
}

const Always* RuleTable::find_lowering(const c10::OperatorName& op) const {
  auto own = lowerings_.find(c10::toString(op));
  return own == lowerings_.end() ? nullptr : &own->second;
}

Traits& RuleTable::traits(const std::string& op) {
  auto all = c10::Dispatcher::singleton().getAllOpNames();
  bool exists =
      overloads().count(op) || std::any_of(all.begin(), all.end(), [&](auto& name) { return name.name == op; });
  TORCH_CHECK_VALUE(exists, "[rule_table] there is no op ", op,
                    ". Traits are of all overloads: leave their names out.");
  return traits_[op];
}

void RuleTable::traits(std::initializer_list<const char*> ops, const std::function<void(Traits&)>& set) {
  for (auto* op : ops) set(traits(op));
}

const Traits& RuleTable::traits_of(const c10::OperatorName& op) const {
  static const auto* none = new Traits;
  auto found = traits_.find(op.name);
  return found == traits_.end() ? *none : found->second;
}

bool RuleTable::makes_places(const std::string& node) const {
  return std::any_of(formulas_.begin(), formulas_.end(), [&](auto& formula) { return node.rfind(formula, 0) == 0; });
}

std::vector<std::string> RuleTable::lowered_ops() const {
  std::set<std::string> names;
  for (auto& [op, planner] : planners_) names.insert(op);
  for (auto& [op, always] : lowerings_) names.insert(op);
  return {names.begin(), names.end()};
}

// A copy of a view has the view's layouts, and separate memory.
void add_copy_rules(RuleTable& table) {
  for (auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const std::string suffix = "_copy";
    if (name.name.rfind("aten::", 0) != 0 || !name.name.ends_with(suffix)) continue;
    c10::OperatorName viewed(name.name.substr(0, name.name.size() - suffix.size()), name.overload_name);
    auto copy = c10::Dispatcher::singleton().findSchema(name), view = c10::Dispatcher::singleton().findSchema(viewed);
    auto rule = table.rules().find(c10::toString(viewed));
    if (!copy || !view || rule == table.rules().end() || table.rules().count(c10::toString(name))) continue;
    if (!is_functional(copy->schema()) || !same_arguments(copy->schema(), view->schema())) continue;
    auto derived = rule->second;
    derived.family = "copy of " + c10::toString(viewed);
    derived.copies = c10::toString(viewed);
    derived.local.only_if_strided = false;
    if (auto local = rule->second.local.run) {
      derived.local.run = [local](LocalCall& call) {
        local(call);
        for (auto& value : call.stack) value = value.toTensor().clone();
      };
    }
    table.add(c10::toString(name), std::move(derived));
  }
}

RuleTable& rule_table() {
  static auto* table = [] {
    auto* t = new RuleTable;
    add_all_ops(*t);
    return t;
  }();
  return *table;
}

}  // namespace intarsia
