#include "intarsia/rules/coverage.h"

#include <algorithm>
#include <map>
#include <sstream>

#include <ATen/core/enum_tag.h>

#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// Whether the op itself has a rule or a lowering, and the family to list it under.
bool served_by_rule(const RuleTable& table, const std::string& op, std::string& family) {
  if (auto rule = table.rules().find(op); rule != table.rules().end()) return family = rule->second.family, true;
  if (table.has_lowering(op)) return family = "other ops", true;
  return false;
}

bool is_composite(const c10::OperatorHandle& handle) {
  return handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

Coverage coverage_of(const RuleTable& table, const c10::OperatorHandle& handle) {
  auto& name = handle.operator_name();
  auto op = c10::toString(name);
  std::string family;
  if (served_by_rule(table, op, family)) {
    auto rule = table.rules().find(op);
    bool copies = rule != table.rules().end() && !rule->second.copies.empty();
    return {op, copies ? Served::derived : Served::rule, family};
  }
  for (auto& base : {base_op_of(name), foreach_base_of(name)}) {
    if (!base.empty() && served_by_rule(table, base, family)) return {op, Served::derived, base};
  }
  if (is_composite(handle) || table.is_composite(op)) return {op, Served::composite, "other ops"};
  if (handle.hasTag(at::Tag::nondeterministic_seeded)) return {op, Served::random, "one draw for all ranks"};
  return {op, Served::fallback, "whole tensors"};
}

}  // namespace

std::string str(Served served) {
  switch (served) {
    case Served::rule: return "rule";
    case Served::derived: return "derived";
    case Served::composite: return "composite";
    case Served::random: return "random";
    case Served::fallback: return "fallback";
  }
  return "";
}

std::vector<Coverage> coverage() {
  std::vector<Coverage> all;
  auto& dispatcher = c10::Dispatcher::singleton();
  auto& table = rule_table();
  for (auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    if (auto handle = dispatcher.findSchema(name)) all.push_back(coverage_of(table, *handle));
  }
  std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.op < b.op; });
  return all;
}

std::string coverage_page() {
  auto all = coverage();
  std::map<Served, int64_t> counts;
  std::map<std::string, std::vector<std::string>> families;
  std::map<std::string, int64_t> variants;
  for (auto& entry : all) {
    ++counts[entry.served];
    if (entry.served == Served::rule) families[entry.detail].push_back(entry.op.substr(6));
    if (entry.served == Served::derived) ++variants[entry.detail];
  }
  std::ostringstream page;
  page << "# Ops\n\nMade by `intarsia ops --page`; a test compares it with the rules. `intarsia ops --all` lists every "
          "op, "
       << "`intarsia ops --missing` those\nthat run on whole tensors.\n\n"
       << "| how an ATen op is served | overloads |\n|---|---|\n"
       << "| a rule of its own | " << counts[Served::rule] << " |\n"
       << "| the rule of the op that it is an in-place, out=, foreach or copying variant of | "
       << counts[Served::derived] << " |\n| made of other ops by LibTorch | " << counts[Served::composite] << " |\n"
       << "| random: drawn once, the same on all ranks | " << counts[Served::random] << " |\n"
       << "| on whole tensors, which the trace shows | " << counts[Served::fallback] << " |\n\n"
       << "## Rules by family\nThe number behind an op is how many variants use its rule.\n";
  for (auto& [family, ops] : families) {
    page << "\n### " << family << "\n";
    for (size_t i = 0; i < ops.size(); ++i) {
      page << (i ? ", " : "") << "`" << ops[i] << "`";
      if (auto count = variants.find("aten::" + ops[i]); count != variants.end()) page << " +" << count->second;
    }
    page << "\n";
  }
  return page.str();
}

}  // namespace intarsia
