#include "tests/rules/harness.h"

#include <set>

#include <gtest/gtest.h>

#include "intarsia/rules/builders.h"
#include "tests/support/dealer.h"

namespace intarsia::rules_harness_test {
namespace {

constexpr at::ScalarType kDtypes[] = {at::kDouble, at::kLong, at::kBool, at::kComplexDouble};

// Every sample in every dtype that its op takes, with its rule.
template <class Body>
void for_each_call(std::initializer_list<at::ScalarType> dtypes, Body body) {
  for (auto& sample : samples()) {
    auto rule = rule_table().rules().find(sample.op);
    ASSERT_NE(rule, rule_table().rules().end()) << sample.op << " has a sample but no rule";
    for (auto dtype : dtypes) {
      SampleCall call(sample, dtype);
      if (call.runs()) body(call, rule->second, sample.values);
    }
  }
}

// The rows as they are, and for aligned rules with every cut strided.
Rows rows_of(const SampleCall& call, const Rule& rule) {
  auto rows = rule.rows(call.seen());
  if (!rule.aligned) return rows;
  auto plain = rows;
  for (int64_t split : {2, 3}) {
    for (auto row : plain) {
      auto stride = [&](Placement& p) {
        if (is_shard(p)) p = StridedShard(cut_dim(p), split);
      };
      for (auto& p : row.in) stride(p);
      for (auto& p : row.out) stride(p);
      if (std::find(rows.begin(), rows.end(), row) == rows.end()) rows.push_back(row);
    }
  }
  return rows;
}

TEST(Rules, EveryRuleHasASampleThatRuns) {
  std::set<std::string> sampled;
  for (auto& sample : samples()) {
    bool runs = false;
    for (auto dtype : kDtypes) runs = runs || SampleCall(sample, dtype).runs();
    EXPECT_TRUE(runs) << "the plain op refuses the sample " << SampleCall(sample, at::kDouble).text();
    sampled.insert(sample.op);
  }
  for (auto& [op, rule] : rule_table().rules()) {
    bool ours = op.rfind("aten::", 0) == 0;  // tests add rules for ops of their own
    EXPECT_TRUE(!ours || sampled.count(op)) << op << " needs a line in samples*.cpp";
  }
}

TEST(Rules, EveryRowIsRightOnTwoThreeAndFourRanks) {
  int64_t proven = 0;
  seed_dealer(1);
  for_each_call({at::kDouble, at::kFloat, at::kBFloat16, at::kBool, at::kByte, at::kInt, at::kLong, at::kComplexDouble},
                [&](const SampleCall& call, const Rule& rule, bool values) {
                  for (auto& row : rows_of(call, rule)) {
                    for (int64_t n : {2, 3, 4}) {
                      Trial trial{{row}, {n}};
                      if (!possible(call, rule, trial)) continue;
                      auto wrong = try_rows(call, rule, trial, values);
                      EXPECT_EQ(wrong, "") << call.text() << "  " << text_of(trial);
                      ++proven;
                      if (!wrong.empty()) break;
                    }
                  }
                });
  std::cout << proven << " rows tried\n";
}

TEST(Rules, PairsOfRowsAreRightOnTwoAxes) {
  int64_t proven = 0;
  seed_dealer(2);
  for_each_call({at::kDouble, at::kLong}, [&](const SampleCall& call, const Rule& rule, bool values) {
    auto rows = rule.rows(call.seen());
    for (auto& first : rows) {
      for (auto& second : rows) {
        Trial trial{{first, second}, {2, 2}};
        if (!possible(call, rule, trial)) continue;
        EXPECT_EQ(try_rows(call, rule, trial, values), "") << call.text() << "  " << text_of(trial);
        ++proven;
      }
    }
  });
  std::cout << proven << " pairs tried\n";
}

}  // namespace
}  // namespace intarsia::rules_harness_test
