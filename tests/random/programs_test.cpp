// Random programs against plain tensors. INTARSIA_PROGRAMS=n draws n of them, INTARSIA_SEED=s runs one and prints it.

#include <cstdlib>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "tests/random/program.h"

namespace intarsia {
namespace {

constexpr int64_t kShards = 8;

int64_t number_from(const char* variable, int64_t otherwise) {
  auto* text = std::getenv(variable);
  return text ? std::atoll(text) : otherwise;
}

class RandomPrograms : public testing::TestWithParam<int64_t> {};

TEST_P(RandomPrograms, GiveTheValuesAndGradientsOfPlainTensors) {
  auto count = number_from("INTARSIA_PROGRAMS", 20800) / kShards, first = GetParam() * count;
  if (std::getenv("INTARSIA_SEED")) first = number_from("INTARSIA_SEED", 0), count = GetParam() == 0;
  int64_t refused = 0, failures = 0;
  for (auto seed = first; seed < first + count && failures < 10; ++seed) {
    auto program = draw_program(seed);
    if (std::getenv("INTARSIA_SEED")) std::cout << str(program) << std::endl;
    bool refusal = false;
    auto wrong = compare(program, &refusal);
    if (!wrong.empty()) ++failures;
    EXPECT_EQ(wrong, "") << str(program);
    refused += refusal;
  }
  std::cout << count << " programs from seed " << first << ", " << refused << " of them refused an in-place step\n";
}

INSTANTIATE_TEST_SUITE_P(Shards, RandomPrograms, testing::Range<int64_t>(0, kShards));

}  // namespace
}  // namespace intarsia
