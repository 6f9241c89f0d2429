// Jumps in the stream of the generator.

#include <ATen/core/MT19937RNGEngine.h>
#include <gtest/gtest.h>

#include "intarsia/random/jump.h"
#include "intarsia/random/mt19937.h"

namespace intarsia::random_jump_test {
namespace {

at::mt19937 after_drawing(uint64_t count) {
  at::mt19937 engine(42);
  for (uint64_t i = 0; i < count; ++i) engine();
  return engine;
}

void expect_equal(const Mt19937State& a, const Mt19937State& b, uint64_t first, uint64_t count) {
  EXPECT_EQ(a.left_, b.left_) << count << " after " << first;
  EXPECT_EQ(a.next_, b.next_) << count << " after " << first;
  EXPECT_EQ(a.state_, b.state_) << count << " after " << first;
}

TEST(Mt19937, AdvancesAsDrawingDoes) {
  for (uint64_t first : {0, 1, 623, 624, 700}) {
    for (uint64_t count : {0, 1, 5, 623, 624, 625, 1248, 5'000, 5'100'000, 9'999'999}) {
      auto state = after_drawing(first).data();
      advance(state, count);
      expect_equal(state, after_drawing(first + count).data(), first, count);
    }
  }
}

TEST(Mt19937, JumpsOverAnyNumberOfBlocks) {
  for (uint64_t blocks : {1, 2, 3, 31, 32, 33, 1000}) {
    auto jumped = after_drawing(1).data(), run = jumped;
    jump_blocks(jumped.state_.data(), blocks);
    for (uint64_t i = 0; i < blocks; ++i) next_block(run.state_.data());
    EXPECT_EQ(jumped.state_, run.state_) << blocks;
  }
}

TEST(Mt19937, TwoLongJumpsAreOneThatIsAsLong) {
  auto once = after_drawing(3).data(), twice = once;
  advance(once, (uint64_t(1) << 45) + 777);
  advance(twice, uint64_t(1) << 44);
  advance(twice, (uint64_t(1) << 44) + 777);
  expect_equal(twice, once, 0, 0);
}

TEST(Mt19937, WordsThatAreReadAndGivenAreTheNumbersDrawn) {
  auto engine = after_drawing(600), given = engine;
  auto state = engine.data(), fed = state;
  uint32_t words[100];
  read_words(state, words, 100);
  give_words(fed, words, 100);
  given.set_data(fed);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(given(), engine());
  expect_equal(state, engine.data(), 600, 100);
}

}  // namespace
}  // namespace intarsia::random_jump_test
