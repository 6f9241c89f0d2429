#include "intarsia/rules/table.h"

#include <gtest/gtest.h>
#include <torch/version.h>

#include "intarsia/rules/builders.h"
#include "tests/support/error_text.h"

namespace intarsia::rules_table_test {
namespace {

TEST(RuleTable, ANameThatNobodyKnowsIsAnError) {
  RuleTable table;
  EXPECT_EQ(error_text<c10::ValueError>([&] { table.add("aten::ad.Tensor", pointwise()); }),
            "[rule_table] there is no op aten::ad.Tensor. Define it before its rule, and name the overload too, as in "
            "aten::add.Tensor.");
  EXPECT_NE(error_text<c10::ValueError>([&] {
              table.lower("aten::soft", [](const CutCall&) { return Lowering(); });
            }).find("there is no op"),
            std::string::npos);
  EXPECT_NE(error_text<c10::ValueError>([&] {
              table.gradient("aten::emb", +[](const at::Tensor& t) { return t; });
            }).find("there is no op"),
            std::string::npos);
}

TEST(RuleTable, AnOpMayBeInSomeVersionsOfLibTorchOnly) {
  RuleTable table;
  constexpr int kThis = TORCH_VERSION_MINOR;
  table.add("aten::no_such_op", pointwise(), Versions{.until = kThis - 1});
  EXPECT_EQ(table.rules().count("aten::no_such_op"), 0);
  table.add("aten::relu", pointwise(), Versions{.since = kThis});
  EXPECT_EQ(table.rules().count("aten::relu"), 1);
  EXPECT_NE(error_text<c10::ValueError>([&] {
              table.add("aten::no_such_op", pointwise(), Versions{.since = kThis});
            }).find("there is no op"),
            std::string::npos);
  EXPECT_EQ(error_text<c10::ValueError>([&] { table.add("aten::abs", pointwise(), Versions{.since = kThis + 1}); }),
            c10::str("[rule_table] aten::abs is said to be in LibTorch 2.", kThis + 1, " to 2.99, but ", TORCH_VERSION,
                     " has it. Correct its versions."));
}

TEST(RuleTable, ASecondRuleForOneOpIsAnError) {
  RuleTable table;
  table.add("aten::relu", pointwise());
  EXPECT_EQ(error_text<c10::ValueError>([&] { table.add("aten::relu", pointwise()); }),
            "[rule_table] aten::relu has a rule already.");
  table.replace("aten::relu", rows("mine", [](const OpCall&) { return Rows(); }));
  EXPECT_EQ(table.rules().at("aten::relu").family, "mine");
}

TEST(RuleTable, ARuleWithoutRowsIsAnError) {
  RuleTable table;
  EXPECT_EQ(error_text<c10::ValueError>([&] { table.add("aten::relu", Rule()); }),
            "[rule_table] the rule of aten::relu has no rows. Make it with a builder: see builders.h.");
}

TEST(RuleTable, VariantsUseTheRuleOfTheirOp) {
  EXPECT_EQ(base_op_of({"aten::add_", "Tensor"}), "aten::add.Tensor");
  EXPECT_EQ(base_op_of({"aten::add", "out"}), "aten::add.Tensor");
  EXPECT_EQ(foreach_base_of({"aten::_foreach_add", "List"}), "aten::add.Tensor");
  EXPECT_EQ(rule_table().find({"aten::add_", "Tensor"}), rule_table().find({"aten::add", "Tensor"}));
}

}  // namespace
}  // namespace intarsia::rules_table_test
