// Backward ops that compute only the gradients they are asked for: every subset of output_mask, on every row of the
// rule, gives what the plain op gives.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/rules/compare_calls.h"
#include "tests/support/compare.h"
#include "tests/support/world.h"

namespace intarsia::rules_masks_test {
namespace {

std::vector<c10::IValue> with_mask(std::vector<c10::IValue> stack, size_t place, size_t subset) {
  c10::List<bool> mask;
  for (size_t i = 0; i < stack[place].toBoolList().size(); ++i) mask.push_back(subset >> i & 1);
  stack[place] = mask;
  return stack;
}

void compare_subset(const SampleCall& sample, const Row& row, size_t place, size_t subset, const DeviceMesh& mesh) {
  auto expected = with_mask(sample.with_tensors(sample.tensors()), place, subset);
  sample.handle().callBoxed(expected);
  auto actual = with_mask(sample.with_tensors(laid_out(sample, mesh, row.in)), place, subset);
  sample.handle().callBoxed(actual);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!(subset >> i & 1)) continue;  // what is not asked for may be anything
    EXPECT_EQ(difference(full_tensor(actual[i].toTensor()), expected[i].toTensor(), 1e-9), "") << "gradient " << i;
  }
}

TEST(OutputMask, EverySubsetOfGradientsIsRight) {
  int64_t tried = 0;
  for (auto& sample : samples()) {
    SampleCall plain(sample, at::kDouble);
    auto place = plain.schema().argumentIndexWithName("output_mask");
    if (!place || !plain.runs()) continue;
    auto& rule = rule_table().rules().at(sample.op);
    auto count = plain.seen().args[*place].toBoolList().size();
    for (auto& row : all_rows(plain, rule)) {
      for_each_world({2, 3, 4}, [&](int64_t n) {
        if (!possible(plain, rule, {{row}, {n}})) return;
        for (size_t subset = 1; subset < size_t(1) << count; ++subset) {
          SCOPED_TRACE(plain.text() + "  " + str(row) + " on " + std::to_string(n) + ", subset " +
                       std::to_string(subset));
          EXPECT_NO_THROW(compare_subset(plain, row, *place, subset, init_device_mesh(at::kCPU, {n})));
          ++tried;
        }
      });
    }
  }
  std::cout << tried << " subsets compared\n";
}

}  // namespace
}  // namespace intarsia::rules_masks_test
