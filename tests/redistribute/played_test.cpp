// An all-to-all of simulated ranks is made once for those that get the same; nothing of that may be seen.

#include "intarsia/simulation/moves/simulated_all_to_all.h"

#include <gtest/gtest.h>

#include "intarsia/comm/trace.h"
#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/redistribute/common_runs.h"
#include "intarsia/simulation/twins/twins.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia::redistribute_played_test {
namespace {

at::Tensor ramp() { return at::arange(48, at::kDouble).reshape({8, 6}); }

Step step_between(const DeviceMesh& mesh, const Placements& from, const Placements& to, std::vector<int64_t> axes) {
  return {StepKind::all_to_all, std::move(axes), Layout::get(mesh, from), Layout::get(mesh, to)};
}

TEST(PlayedAllToAll, MakesTwinsThatPartBeforeAWrite) {
  auto world = simulate(16);
  auto mesh = init_device_mesh(at::kCPU, {4, 4});
  auto x = distribute_tensor(ramp(), mesh, {Shard(0), Shard(1)});
  auto whole = simulated_all_to_all(step_between(mesh, {Shard(0), Shard(1)}, {Replicate(), Replicate()}, {0, 1}),
                                    shards_of(x), {8, 6}, false)();
  for (auto& shard : whole) EXPECT_TRUE(are_twins(shard, whole[0]));
  whole[3].mul_(0);
  for (size_t slot = 0; slot < whole.size(); ++slot)
    EXPECT_EQ(difference(whole[slot], slot == 3 ? ramp() * 0 : ramp()), "");
  EXPECT_EQ(difference(full_tensor(x), ramp()), "");
}

TEST(PlayedAllToAll, ARankTakesFromTheCopyBesideIt) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(at::kCPU, {2, 2});
  auto x = distribute_tensor(ramp(), mesh, {Replicate(), Shard(0)});
  for (size_t slot : {2, 3}) shards_of(x)[slot].add_(100);  // the second copy
  auto columns = simulated_all_to_all(step_between(mesh, {Replicate(), Shard(0)}, {Shard(1), Shard(1)}, {0, 1}),
                                      shards_of(x), {8, 6}, false)();
  auto expected = deal_out(ramp(), {Shard(1), Shard(1)}, {2, 2});
  for (size_t slot = 0; slot < 4; ++slot)
    EXPECT_EQ(difference(columns[slot], expected[slot] + (slot < 2 ? 0 : 100)), "");
}

TEST(PlayedAllToAll, WhatIsUnderWayIsACopy) {
  for (auto arrival : {Arrival::at_once, Arrival::late, Arrival::at_random}) {
    auto world = simulate(4, arrival);
    auto mesh = init_device_mesh(at::kCPU, {4});
    auto x = distribute_tensor(ramp(), mesh, {Shard(0)});
    auto finish = simulated_all_to_all(step_between(mesh, {Shard(0)}, {Shard(1)}, {0}), shards_of(x), {8, 6}, true);
    x.mul_(0);
    auto expected = deal_out(ramp(), {Shard(1)}, {4});
    auto columns = finish();
    for (size_t slot = 0; slot < 4; ++slot) EXPECT_EQ(difference(columns[slot], expected[slot]), "");
  }
}

// Elements that the busiest rank sends and receives where each pair trades what the one has and the other needs.
std::pair<int64_t, int64_t> traded(const Step& step, at::IntArrayRef shape) {
  auto& mesh = step.from->mesh();
  std::vector<int64_t> sent(mesh.size(), 0), received(mesh.size(), 0);
  for (int64_t a = 0; a < mesh.size(); ++a) {
    for (int64_t b = 0; b < mesh.size(); ++b) {
      auto source = mesh.coordinate_at(a), target = mesh.coordinate_at(b);
      bool on_line = a != b;
      for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
        bool of_step = std::find(step.axes.begin(), step.axes.end(), axis) != step.axes.end();
        bool gives = of_step && !is_replicate(step.from->placements()[axis]);
        on_line = on_line && (gives || source[axis] == target[axis]);
      }
      if (!on_line) continue;
      auto count = count_of(common_runs(*step.from, source, *step.to, target, shape));
      sent[a] += count, received[b] += count;
    }
  }
  return {*std::max_element(sent.begin(), sent.end()), *std::max_element(received.begin(), received.end())};
}

TEST(PlayedAllToAll, TracesTheBytesOfATradeBetweenPairs) {
  auto world = simulate(6);
  const std::vector<Placement> kinds = {Replicate(), Shard(0), Shard(1), StridedShard(0, 2)};
  int checked = 0;
  for (auto& sides : {std::vector<int64_t>{2, 3}, {3, 2}}) {
    auto mesh = init_device_mesh(at::kCPU, sides);
    for (auto& a : kinds)
      for (auto& b : kinds)
        for (auto& c : kinds)
          for (auto& d : kinds) {
            auto step = step_between(mesh, {a, b}, {c, d}, {0, 1});
            if (step.from == step.to || (is_replicate(a) && is_replicate(b))) continue;
            auto whole = at::arange(35, at::kDouble).reshape({7, 5});
            auto given = lay_out(whole, mesh, {a, b});
            CommDebugMode comms;
            auto moved = simulated_all_to_all(step, shards_of(given), {7, 5}, false)();
            auto [sent, received] = traded(step, {7, 5});
            auto events = comms.events();
            ASSERT_EQ(events.size(), 1U);
            EXPECT_EQ(std::pair(events[0].sent, events[0].received), std::pair(8 * sent, 8 * received))
                << str(*step.from) << str(*step.to);
            auto expected = deal_out(whole, {c, d}, sides);
            for (size_t slot = 0; slot < 6; ++slot) ASSERT_EQ(difference(moved[slot], expected[slot]), "");
            ++checked;
          }
  }
  EXPECT_GT(checked, 300);
}

}  // namespace
}  // namespace intarsia::redistribute_played_test
