// Random programs against plain tensors. INTARSIA_PROGRAMS=n draws n of them, from seed INTARSIA_FIRST on;
// INTARSIA_SEED=s runs one and prints it. Real processes run those whose mesh is as large as their world.

#include <cstdlib>

#include <c10/util/accumulate.h>
#include <gtest/gtest.h>

#include "intarsia/core/world.h"
#include "tests/random/program.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace intarsia::random_programs_test {
namespace {

// Autograd's graph holds itself where a value is changed in place and a view of it was an operand, with plain tensors
// alike: v = x * 1; v.mul_(v.view({3, 3})) is never freed unless backward runs. Programs do such things.
struct WithoutLeakCheck {
#ifdef __SANITIZE_ADDRESS__
  WithoutLeakCheck() { __lsan_disable(); }
  ~WithoutLeakCheck() { __lsan_enable(); }
#endif
};

constexpr int64_t kShards = 8;

int64_t number_from(const char* variable, int64_t otherwise) {
  auto* text = std::getenv(variable);
  return text ? std::atoll(text) : otherwise;
}

bool fits_the_world(const Program& program) {
  return !process_world() || process_world()->size() == c10::multiply_integers(program.mesh_shape);
}

class RandomPrograms : public testing::TestWithParam<int64_t> {};

TEST_P(RandomPrograms, GiveTheValuesAndGradientsOfPlainTensors) {
  auto count = number_from("INTARSIA_PROGRAMS", process_world() ? 8000 : 20800) / kShards;
  auto first = number_from("INTARSIA_FIRST", 0) + GetParam() * count;
  if (std::getenv("INTARSIA_SEED")) first = number_from("INTARSIA_SEED", 0), count = GetParam() == 0;
  [[maybe_unused]] WithoutLeakCheck graphs_of_autograd;
  int64_t run = 0, refused = 0, failures = 0;
  for (auto seed = first; seed < first + count && failures < number_from("INTARSIA_FAILURES", 10); ++seed) {
    auto program = draw_program(seed);
    if (!fits_the_world(program)) continue;
    ++run;
    if (std::getenv("INTARSIA_SEED")) std::cout << str(program) << std::endl;
    bool refusal = false;
    auto wrong = compare(program, &refusal);
    if (!wrong.empty()) ++failures;
    EXPECT_EQ(wrong, "") << str(program);
    refused += refusal;
  }
  std::cout << run << " programs from seed " << first << ", " << refused << " of them refused an in-place step\n";
}

INSTANTIATE_TEST_SUITE_P(Shards, RandomPrograms, testing::Range<int64_t>(0, kShards));

}  // namespace
}  // namespace intarsia::random_programs_test
