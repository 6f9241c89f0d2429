// A listing of all rules with their rows for the samples: a review sees which rows a change adds or loses.

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include <gtest/gtest.h>
#include <torch/version.h>

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

const std::string kPath = std::string(INTARSIA_SOURCE_DIR) + "/tests/rules.golden";

std::string read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// The lines of a listing, op by op; what stands before and after the ops has no name.
std::map<std::string, std::string> blocks(const std::string& listing) {
  std::map<std::string, std::string> result;
  std::istringstream lines(listing);
  std::string name;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("aten::", 0) == 0) name = line.substr(0, line.find(' '));
    if (line.empty()) name.clear();
    result[name] += line + "\n";
  }
  return result;
}

// What the listing of another version of LibTorch has otherwise than that of the oldest.
std::string differences(const std::string& oldest, const std::string& other) {
  auto before = blocks(oldest), after = blocks(other);
  std::string text;
  for (auto& [op, block] : before) {
    if (!after.count(op)) text += op + " is not in this version\n";
  }
  for (auto& [op, block] : after) {
    if (!before.count(op) || before[op] != block) text += block;
  }
  return text;
}

// INTARSIA_UPDATE_GOLDEN=1 writes the listing instead of comparing it: that of LibTorch 2.13 whole, those of other
// versions as what differs from it.
TEST(Rules, TheListingOfAllRulesIsUpToDate) {
  bool oldest = TORCH_VERSION_MINOR == 13;
  auto path = oldest ? kPath + ".txt" : c10::str(kPath, ".2.", TORCH_VERSION_MINOR, ".txt");
  auto now = oldest ? listing() : differences(read(kPath + ".txt"), listing());
  if (std::getenv("INTARSIA_UPDATE_GOLDEN")) {
    std::ofstream(path) << now;
    return;
  }
  EXPECT_TRUE(read(path) == now) << "rules changed: run this test with INTARSIA_UPDATE_GOLDEN=1 and look at the "
                                 << "difference in " << path;
}

}  // namespace
}  // namespace intarsia::rules_golden_test
