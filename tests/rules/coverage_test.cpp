#include "intarsia/rules/coverage.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

namespace intarsia {
namespace {

TEST(Coverage, AtLeast1250OverloadsHaveARuleWrittenOrDerived) {
  int64_t covered = 0;
  for (auto& entry : coverage()) covered += entry.served == Served::rule || entry.served == Served::derived;
  std::cout << covered << " overloads have a rule\n";
  EXPECT_GE(covered, 1250);
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
}  // namespace intarsia
