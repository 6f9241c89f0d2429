// A listing of all rules with their rows for the samples: a review sees which rows a change adds or loses.

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include <gtest/gtest.h>

#include "tests/rules/harness.h"

namespace intarsia::rules_golden_test {
namespace {

std::string listing() {
  std::map<std::string, std::vector<std::string>> calls;
  for (auto& sample : samples()) {
    SampleCall call(sample, at::kDouble);
    if (!call.runs()) call = SampleCall(sample, at::kLong);
    if (!call.runs()) call = SampleCall(sample, at::kBool);
    if (!call.runs()) continue;
    auto text = "  " + call.text() + "\n";
    auto& rule = rule_table().rules().at(sample.op);
    for (auto& row : rule.rows(call.seen())) text += "    " + str(row) + "\n";
    if (rule.joint.rows) {
      for (auto& row : rule.joint.rows(call.seen())) text += "    along a cut: " + str(row) + "\n";
    }
    calls[sample.op].push_back(std::move(text));
  }
  std::ostringstream out;
  out << "The rules of all ops. Each is proven on the calls listed below it.\n"
      << "In-place and out= variants use the rule of the op they are variants of.\n\n";
  for (auto& [op, rule] : rule_table().rules()) {
    if (op.rfind("aten::", 0) != 0) continue;  // of another test
    out << op << "  [" << rule.family << "]\n";
    for (auto& text : calls[op]) out << text;
  }
  out << "\nBy other ops and collectives, where their own dims are cut or always:\n";
  for (auto& op : rule_table().lowered_ops()) out << "  " << op << "\n";
  return out.str();
}

// INTARSIA_UPDATE_GOLDEN=1 writes the listing instead of comparing it.
TEST(Rules, TheListingOfAllRulesIsUpToDate) {
  auto path = std::string(INTARSIA_SOURCE_DIR) + "/tests/rules.golden.txt";
  if (std::getenv("INTARSIA_UPDATE_GOLDEN")) {
    std::ofstream(path) << listing();
    return;
  }
  std::stringstream golden;
  golden << std::ifstream(path).rdbuf();
  EXPECT_TRUE(golden.str() == listing()) << "rules changed: run this test with INTARSIA_UPDATE_GOLDEN=1 and look at "
                                         << "the difference in tests/rules.golden.txt";
}

}  // namespace
}  // namespace intarsia::rules_golden_test
