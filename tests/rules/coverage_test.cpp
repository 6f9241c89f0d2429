#include "intarsia/rules/coverage.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "intarsia/rules/table.h"

namespace intarsia::rules_coverage_test {
namespace {

TEST(Coverage, AtLeast1250OverloadsHaveARuleWrittenOrDerived) {
  int64_t covered = 0;
  for (auto& entry : coverage()) covered += entry.served == Served::rule || entry.served == Served::derived;
  std::cout << covered << " overloads have a rule\n";
  EXPECT_GE(covered, 1250);
}

// Without it, the op would run on whole tensors although it has a rule.
TEST(Coverage, EveryRuleKnowsTheShapesOfItsResults) {
  using Key = c10::DispatchKey;
  for (auto& [name, rule] : rule_table().rules()) {
    if (rule.form.shapes || rule.form.whole || rule.asks_for_all || name.starts_with("mylib")) continue;
    auto dot = name.find('.');
    auto op =
        c10::Dispatcher::singleton().findSchema({name.substr(0, dot), dot == name.npos ? "" : name.substr(dot + 1)});
    ASSERT_TRUE(op) << name;
    bool runs_without_data = false;
    for (auto key : {Key::Meta, Key::CompositeExplicitAutograd, Key::CompositeExplicitAutogradNonFunctional,
                     Key::CompositeImplicitAutograd}) {
      runs_without_data = runs_without_data || op->hasKernelForDispatchKey(key);
    }
    EXPECT_TRUE(runs_without_data) << name << ": give its rule `shapes`";
  }
}

// INTARSIA_UPDATE_GOLDEN=1 writes the page instead of comparing it.
TEST(Coverage, ThePageOfOpsIsUpToDate) {
  auto path = std::string(INTARSIA_SOURCE_DIR) + "/docs/ops.md";
  if (std::getenv("INTARSIA_UPDATE_GOLDEN")) {
    std::ofstream(path) << coverage_page();
    return;
  }
  std::stringstream page;
  page << std::ifstream(path).rdbuf();
  EXPECT_TRUE(page.str() == coverage_page()) << "rules changed: run this test with INTARSIA_UPDATE_GOLDEN=1";
}

}  // namespace
}  // namespace intarsia::rules_coverage_test
