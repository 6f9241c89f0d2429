// Every way from one layout to another, compared with an independent dealer.

#include <set>

#include <gtest/gtest.h>

#include "intarsia/comm/trace.h"
#include "intarsia/core/pending.h"
#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/redistribute/plan.h"
#include "tests/support/error_text.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia::redistribute_table_test {
namespace {

using Ints = std::vector<int64_t>;

// Small whole numbers: exact in every dtype, whatever the order of a sum.
at::Tensor numbers(const Ints& shape, at::ScalarType dtype) {
  auto count = c10::multiply_integers(shape);
  auto values = (at::arange(count) * 5 % 7 - 3).reshape(shape);
  return dtype == at::kBool ? values > 0 : dtype == at::kByte ? values.abs().to(dtype) : values.to(dtype);
}

bool reachable(const Placements& from, const Placements& to) {
  for (size_t axis = 0; axis < from.size(); ++axis) {
    if (is_partial(from[axis]) && is_partial(to[axis]) && from[axis] != to[axis]) return false;
  }
  return true;
}

bool all_hold(const Placements& placements, at::ScalarType dtype) {
  return std::all_of(placements.begin(), placements.end(), [&](auto& p) { return can_hold(p, dtype); });
}

// Every list of one placement per axis.
std::vector<Placements> layouts_of(const std::vector<Placement>& kinds, size_t axes) {
  std::vector<Placements> all = {{}};
  for (size_t axis = 0; axis < axes; ++axis) {
    std::vector<Placements> longer;
    for (auto& start : all) {
      for (auto& kind : kinds) longer.push_back(start), longer.back().push_back(kind);
    }
    all = std::move(longer);
  }
  return all;
}

void check(const at::Tensor& whole, const DeviceMesh& mesh, const Placements& from, const Placements& to) {
  auto moved = redistribute(lay_out(whole, mesh, from), to);
  auto context = [&] {
    return str(from) + " -> " + str(to) + c10::str(" of ", whole.scalar_type(), whole.sizes(), " on ", mesh.text());
  };
  ASSERT_EQ(str(placements_of(moved)), str(to));
  // A third of a number is not exact; everything else is.
  bool thirds = std::count(from.begin(), from.end(), Placement(Partial("avg"))) > 0 && mesh.size() % 3 == 0;
  auto tolerance = thirds && whole.scalar_type() == at::kDouble ? 1e-12 : 0;
  ASSERT_EQ(difference(full_tensor(moved), whole, tolerance), "") << context();
  if (std::any_of(to.begin(), to.end(), is_partial)) return;
  auto expected = deal_out(whole, to, mesh.shape().vec());
  for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
    int64_t index = 0;
    for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
      index = index * mesh.size(axis) + mesh.slots()[slot].coordinate[axis];
    }
    ASSERT_EQ(difference(shards_of(moved)[slot], expected[index], tolerance), "") << context() << ", slot " << slot;
  }
}

int64_t check_all(const DeviceMesh& mesh, const std::vector<Placement>& kinds, const std::vector<Ints>& shapes,
                  const std::vector<at::ScalarType>& dtypes) {
  int64_t checked = 0, skipped = 0;
  auto layouts = layouts_of(kinds, mesh.ndim());
  for (auto dtype : dtypes) {
    for (auto& shape : shapes) {
      auto whole = numbers(shape, dtype);
      for (auto& from : layouts) {
        for (auto& to : layouts) {
          if (!reachable(from, to) || !all_hold(from, dtype) || !all_hold(to, dtype)) continue;
          if (!have_one_value(from) || !have_one_value(to)) continue;
          // Real processes take a while: every seventh pair, a different seventh for each shape.
          if (process_world() && mesh.ndim() > 1 && ++skipped % 7) continue;
          check(whole, mesh, from, to);
          if (testing::Test::HasFatalFailure()) return checked;
          ++checked;
        }
      }
    }
  }
  return checked;
}

const std::vector<Placement> kAll = {
    Replicate(),     Shard(0),       Shard(1),        StridedShard(0, 2),      StridedShard(1, 3),
    Partial("sum"),  Partial("avg"), Partial("max"),  Partial("min"),          Partial("product"),
    Partial("band"), Partial("bor"), Partial("bxor"), MaskedPartial({8, 3}, 0)};
const std::vector<at::ScalarType> kDtypes = {at::kBool,     at::kByte,  at::kInt,    at::kLong,        at::kHalf,
                                             at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat};

TEST(RedistributeTable, EveryPairOfPlacementsOnOneAxisInEveryDtype) {
  int64_t checked = 0;
  for_each_world({1, 2, 3, 4, 8}, [&](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    checked += check_all(mesh, kAll, {{0, 5}, {1, 8}, {5, 3}, {8, 5}}, kDtypes);
  });
  std::cout << checked << " redistributions\n";
}

TEST(RedistributeTable, EveryPairOfPlacementsOnTwoAxes) {
  const std::vector<Placement> kinds = {Replicate(),        Shard(0),           Shard(1),
                                        StridedShard(0, 2), StridedShard(0, 3), Partial("sum"),
                                        Partial("avg"),     Partial("max"),     Partial("product")};
  int64_t checked = 0;
  for_each_world({4, 6}, [&](int64_t n) {
    for (auto& shape : std::set<Ints>{{2, n / 2}, {n / 2, 2}}) {
      checked += check_all(init_device_mesh(at::kCPU, shape), kinds, {{5, 3}, {8, 4}, {1, 0}}, {at::kDouble});
    }
  });
  std::cout << checked << " redistributions\n";
}

// Norms have no negative values, so they have a table of their own.
TEST(RedistributeTable, PendingNormsGoToEveryOtherPlacementAndBack) {
  for_each_world({1, 2, 3, 4}, [&](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto whole = at::arange(15, at::kDouble).reshape({5, 3});
    for (double order : {0.5, 1.0, 2.0, 3.0}) {
      for (auto& other : {Placement(Replicate()), Placement(Shard(0)), Placement(StridedShard(1, 2))}) {
        auto settled = redistribute(lay_out(whole, mesh, {NormPartial(order)}), {other});
        EXPECT_TRUE(at::allclose(full_tensor(settled), whole)) << order << " to " << str(other);
        auto pending = redistribute(lay_out(whole, mesh, {other}), {NormPartial(order)});
        EXPECT_TRUE(at::allclose(full_tensor(pending), whole)) << order << " from " << str(other);
      }
    }
  });
}

TEST(RedistributeTable, WhatAddsUpIsReducedByOneCollectiveOverBothAxesAndNormsAreNotMixedIn) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(at::kCPU, {2, 2});
  auto whole = at::arange(6, at::kDouble).reshape({2, 3});
  for (auto& placements :
       {Placements{MaskedPartial({2, 3}, 0), Partial()}, Placements{NormPartial(2), NormPartial(2)}}) {
    auto pending = lay_out(whole, mesh, placements);
    CommDebugMode comms;
    EXPECT_TRUE(at::allclose(full_tensor(pending), whole)) << str(placements);
    EXPECT_EQ(comms.get_total_counts(), 1) << str(placements);
  }
  EXPECT_FALSE(have_one_value({NormPartial(2), Partial()}));
  EXPECT_FALSE(have_one_value({NormPartial(2), NormPartial(3)}));
}

TEST(RedistributeTable, EveryPairOfPlacementsOnThreeAxes) {
  const std::vector<Placement> kinds = {Replicate(), Shard(0), Shard(1), StridedShard(0, 2), Partial("sum")};
  int64_t checked = 0;
  for_each_world({8}, [&](int64_t) {
    checked += check_all(init_device_mesh(at::kCPU, {2, 2, 2}), kinds, {{5, 4}}, {at::kFloat});
  });
  std::cout << checked << " redistributions\n";
}

// Splits far beyond the size: the work is that of the size, in the plan as in the move.
TEST(RedistributeTable, ASplitMayBeAnything) {
  const std::vector<Placement> kinds = {Replicate(), Shard(0), StridedShard(0, 1000000000), StridedShard(0, 3)};
  for_each_world({4}, [&](int64_t) {
    auto whole = numbers({7, 2}, at::kFloat);
    for (auto& shape : {Ints{4}, Ints{2, 2}}) {
      auto mesh = init_device_mesh(at::kCPU, shape);
      for (auto& from : layouts_of(kinds, mesh.ndim())) {
        for (auto& to : layouts_of(kinds, mesh.ndim())) {
          auto moved = redistribute(distribute_tensor(whole, mesh, from), to);
          ASSERT_EQ(difference(full_tensor(moved), whole, 0), "") << str(from) << " -> " << str(to);
          auto dealt = distribute_tensor(whole, mesh, to, std::nullopt);
          ASSERT_EQ(difference(shards_of(moved)[0], shards_of(dealt)[0], 0), "") << str(from) << " -> " << str(to);
        }
      }
    }
  });
}

TEST(RedistributeTable, APlanOfManyRunsIsMadeInTimeThatGrowsWithThem) {
  for_each_world({4}, [&](int64_t) {
    auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    auto* from = Layout::get(mesh, {StridedShard(0, 1 << 16), StridedShard(0, 1 << 17)});
    auto* to = Layout::get(mesh, {StridedShard(0, 1 << 15), StridedShard(0, 1000000000)});
    EXPECT_EQ(plan(from, to, {1 << 18}, 4).steps.back().to, to);
  });
}

struct Heard : Recorder {
  Heard() { add_recorder(this); }
  ~Heard() override { remove_recorder(this); }
  void on_comm(const CommEvent& event) override { text += str(event) + ";"; }
  void on_fallback(const FallbackEvent&) override {}
  std::string text;
};

std::string heard_on(const DeviceMesh& mesh, const char* from, const char* to) {
  auto tensor = lay_out(numbers({8, 8}, at::kFloat), mesh, parse_placements(from));
  Heard recorder;
  redistribute(tensor, parse_placements(to));
  return recorder.text;
}

std::string heard(const char* from, const char* to) {
  return heard_on(init_device_mesh(at::kCPU, {current_world().size()}, {"tp"}), from, to);
}

// 8x8 floats are 256 bytes; on 4 ranks a shard is 64 bytes, and each rank has 3 others to hear from.
TEST(RedistributeTable, MovesTheBytesThatTheorySays) {
  for_each_world({4}, [&](int64_t) {
    EXPECT_EQ(heard("[S(0)]", "[R]"), "all_gather tp 192B;");
    EXPECT_EQ(heard("[S(0)]", "[S(1)]"), "all_to_all tp 48B;");
    EXPECT_EQ(heard("[SS(0, 2)]", "[S(1)]"), "all_to_all tp 48B;");
    EXPECT_EQ(heard("[P(sum)]", "[R]"), "all_reduce(sum) tp 384B;");
    EXPECT_EQ(heard("[P(sum)]", "[S(1)]"), "reduce_scatter(sum) tp 192B;");
    EXPECT_EQ(heard("[P(avg)]", "[S(0)]"), "reduce_scatter(avg) tp 192B;");
    EXPECT_EQ(heard("[R]", "[S(0)]"), "");
    EXPECT_EQ(heard("[R]", "[P(sum)]"), "");
    EXPECT_EQ(heard("[S(1)]", "[S(1)]"), "");
  });
}

TEST(RedistributeTable, WhatIsPendingAlongTwoAxesIsReducedByOneCollective) {
  for_each_world({4}, [&](int64_t) {
    auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    EXPECT_EQ(heard_on(mesh, "[P(sum), P(sum)]", "[R, R]"), "all_reduce(sum) dp_tp 384B;");
    EXPECT_EQ(heard_on(mesh, "[P(sum), P(avg)]", "[R, R]"), "all_reduce(sum) dp_tp 384B;");
    EXPECT_EQ(heard_on(mesh, "[P(avg), P(avg)]", "[R, R]"), "all_reduce(avg) dp_tp 384B;");
    EXPECT_EQ(heard_on(mesh, "[P(max), P(max)]", "[R, R]"), "all_reduce(max) dp_tp 384B;");
  });
}

TEST(RedistributeTable, WhatIsPendingAlongTwoAxesIsScatteredByOneCollective) {
  for_each_world({4}, [&](int64_t) {
    auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    for (auto* to : {"[S(0), S(1)]", "[S(1), S(0)]", "[S(0), S(0)]", "[SS(0, 2), S(1)]"}) {
      EXPECT_EQ(heard_on(mesh, "[P(sum), P(sum)]", to), "reduce_scatter(sum) dp_tp 192B;") << to;
      EXPECT_EQ(heard_on(mesh, "[P(avg), P(sum)]", to), "reduce_scatter(sum) dp_tp 192B;") << to;
      EXPECT_EQ(heard_on(mesh, "[P(max), P(max)]", to), "reduce_scatter(max) dp_tp 192B;") << to;
    }
  });
}

// Between hosts that are slow to reach, as few bytes as possible.
TEST(RedistributeTable, ASlowAxisIsReducedByItself) {
  for_each_world({8}, [&](int64_t) {
    auto mesh = init_device_mesh(at::kCPU, {2, 4}, {"host", "tp"});
    set_link_cost(mesh, 0, {100, 0.01});
    set_link_cost(mesh, 1, {1, 10});
    auto *pending = Layout::get(mesh, {Partial(), Partial()}), *whole = Layout::get(mesh, {Replicate(), Replicate()});
    EXPECT_EQ(plan(pending, whole, {1 << 20}, 4).steps.size(), 2);
    auto* parts = Layout::get(mesh, {Shard(1), Shard(0)});
    EXPECT_EQ(
        str(plan(pending, parts, {1 << 10, 1 << 10}, 4)),
        "reduce_scatter tp [P(sum), P(sum)] -> [P(sum), S(0)]; reduce_scatter host [P(sum), S(0)] -> [S(1), S(0)]");
    for (int64_t axis : {0, 1}) set_link_cost(mesh, axis, LinkCost());
  });
}

TEST(RedistributeTable, OnePendingReductionDoesNotBecomeAnother) {
  for_each_world({2}, [&](int64_t) {
    EXPECT_EQ(error_text<c10::ValueError>([] { heard("[P(sum)]", "[P(max)]"); }),
              "[redistribute] [P(sum)] cannot become [P(max)]: a pending P(sum) is not a pending P(max). Redistribute "
              "to Replicate first.");
  });
}

TEST(RedistributeTable, NestedCutsOfOneDimGatherInTheRightOrder) {
  for_each_world({6}, [&](int64_t) {
    auto mesh = init_device_mesh(at::kCPU, {2, 3}, {"dp", "tp"});
    auto* nested = Layout::get(mesh, {Shard(0), Shard(0)});
    EXPECT_EQ(str(plan(nested, Layout::get(mesh, {Shard(0), Replicate()}), {12}, 4)),
              "all_gather tp [S(0), S(0)] -> [S(0), R]");
  });
}

}  // namespace
}  // namespace intarsia::redistribute_table_test
