#include "intarsia/simulation/simulation.h"

#include <gtest/gtest.h>

#include "intarsia/comm/engine.h"
#include "tests/support/error_text.h"

namespace intarsia::simulation_simulation_test {
namespace {

TEST(Simulate, HostsEveryRank) {
  auto world = simulate(5);
  EXPECT_EQ(current_world().size(), 5);
  EXPECT_EQ(current_world().hosted(), (std::vector<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_TRUE(current_world().simulated());
  EXPECT_EQ(current_world().text(), "a simulation of 5 ranks");
}

TEST(Simulate, WithoutItTheWorldIsOneRank) {
  EXPECT_EQ(current_world().size(), 1);
  EXPECT_EQ(current_world().text(), "one rank");
}

TEST(Simulate, OneRankIsTheWorldThatIsThereWithoutIt) {
  auto* before = &current_world();
  auto world = simulate(1);
  EXPECT_EQ(&current_world(), before);
  EXPECT_EQ(before, &world_of_one());
  EXPECT_EQ(engine_of(*before).carrier(Line{}), "local");
}

TEST(Simulate, TheInnermostWorldIsCurrentAndEndsWithItsScope) {
  auto outer = simulate(4);
  {
    auto inner = simulate(2);
    EXPECT_EQ(current_world().size(), 2);
    EXPECT_EQ(outer.size(), 4);
    EXPECT_EQ(inner.size(), 2);
  }
  EXPECT_EQ(current_world().size(), 4);
}

TEST(Simulate, WorldsOfOneSizeAreOneWorld) {
  auto world_of = [](int64_t n) {
    auto world = simulate(n);
    return &current_world();
  };
  EXPECT_EQ(world_of(3), world_of(3));
  EXPECT_NE(world_of(3), world_of(4));
}

TEST(Simulate, HundredsOfRanksAreFine) {
  auto world = simulate(256);
  EXPECT_EQ(current_world().hosted().back(), 255);
}

TEST(Simulate, ItTakesAtLeastOneRank) {
  for (int64_t n : {0, -1}) {
    EXPECT_EQ(error_text<c10::ValueError>([&] { auto world = simulate(n); }),
              "[simulate] a world of " + std::to_string(n) + " ranks was asked for. It needs at least 1.");
  }
}

}  // namespace
}  // namespace intarsia::simulation_simulation_test
