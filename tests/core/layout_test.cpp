#include "intarsia/core/held.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "intarsia/simulation/simulation.h"

namespace intarsia::core_layout_test {
namespace {

using c10::kCPU;
using Ints = std::vector<int64_t>;
using Dims = c10::SmallVector<int64_t, 5>;

// The positions that each rank holds of a dim of `size` under `placements`, local order: "0 1 4 5".
std::vector<std::string> held(const DeviceMesh& mesh, const char* placements, int64_t size) {
  std::vector<std::string> result;
  auto* layout = Layout::get(mesh, parse_placements(placements));
  for (auto& slot : mesh.slots()) {
    auto& text = result.emplace_back();
    for (auto& piece : intervals_of(*layout, 0, size, slot.coordinate)) {
      for (auto i = piece.begin; i < piece.end; ++i) text += (text.empty() ? "" : " ") + std::to_string(i);
    }
  }
  return result;
}

using Held = std::vector<std::string>;

TEST(ChunkOf, FiveOverFourIsTwoTwoOneNone) {
  EXPECT_EQ(chunk_of(5, 4, 0), (Interval{0, 2}));
  EXPECT_EQ(chunk_of(5, 4, 1), (Interval{2, 4}));
  EXPECT_EQ(chunk_of(5, 4, 2), (Interval{4, 5}));
  EXPECT_EQ(chunk_of(5, 4, 3), (Interval{5, 5}));
}

TEST(ChunkOf, CutsAsTorchChunkCuts) {
  for (int64_t size = 0; size <= 20; ++size) {
    for (int64_t parts = 1; parts <= 9; ++parts) {
      auto chunks = at::arange(size).chunk(parts);
      for (int64_t i = 0; i < parts; ++i) {
        auto expected = i < static_cast<int64_t>(chunks.size()) ? chunks[i] : at::arange(0);
        auto [begin, end] = chunk_of(size, parts, i);
        EXPECT_TRUE(at::equal(at::arange(begin, end), expected)) << size << " over " << parts << ", part " << i;
      }
    }
  }
}

TEST(Layout, EqualLayoutsAreOneObject) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(kCPU, {2, 2}, {"dp", "tp"});
  auto* layout = Layout::get(mesh, {Shard(0), Replicate()});
  EXPECT_EQ(layout, Layout::get(init_device_mesh(kCPU, {2, 2}, {"dp", "tp"}), {Shard(0), Replicate()}));
  EXPECT_NE(layout, Layout::get(mesh, {Shard(1), Replicate()}));
  EXPECT_NE(layout, Layout::get(init_device_mesh(kCPU, {2, 2}), {Shard(0), Replicate()}));
  EXPECT_EQ(layout, Layout::replicated(mesh)->with({Shard(0), Replicate()}));
}

TEST(Layout, TextNamesPlacementsAndMesh) {
  auto world = simulate(8);
  auto mesh = init_device_mesh(kCPU, {2, 4}, {"dp", "tp"});
  EXPECT_EQ(str(*Layout::get(mesh, {Shard(0), Replicate()})), "[S(0), R] on DeviceMesh(cpu, dp=2, tp=4)");
}

TEST(Layout, TellsReplicatedAndPartial) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(kCPU, {2, 2});
  EXPECT_TRUE(Layout::replicated(mesh)->is_replicated());
  EXPECT_FALSE(Layout::replicated(mesh)->has_partial());
  EXPECT_FALSE(Layout::get(mesh, {Replicate(), Shard(0)})->is_replicated());
  EXPECT_TRUE(Layout::get(mesh, {Replicate(), Partial()})->has_partial());
  EXPECT_FALSE(Layout::get(mesh, {Replicate(), Partial()})->is_replicated());
}

TEST(Layout, OnePlacementPerAxis) {
  auto world = simulate(4);
  EXPECT_THROW(Layout::get(init_device_mesh(kCPU, {2, 2}), {Shard(0)}), c10::Error);
}

TEST(IntervalsOf, OneAxisCutsAsChunk) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(kCPU, {4});
  EXPECT_EQ(held(mesh, "[S(0)]", 8), (Held{"0 1", "2 3", "4 5", "6 7"}));
  EXPECT_EQ(held(mesh, "[S(0)]", 5), (Held{"0 1", "2 3", "4", ""}));
  EXPECT_EQ(held(mesh, "[S(0)]", 1), (Held{"0", "", "", ""}));
  EXPECT_EQ(held(mesh, "[S(0)]", 0), (Held{"", "", "", ""}));
}

TEST(IntervalsOf, WhatIsNotCutIsHeldByAll) {
  auto world = simulate(2);
  auto mesh = init_device_mesh(kCPU, {2});
  EXPECT_EQ(held(mesh, "[R]", 3), (Held{"0 1 2", "0 1 2"}));
  EXPECT_EQ(held(mesh, "[P(sum)]", 3), (Held{"0 1 2", "0 1 2"}));
  EXPECT_EQ(held(mesh, "[S(1)]", 3), (Held{"0 1 2", "0 1 2"}));
}

TEST(IntervalsOf, TheSecondAxisCutsWhatTheFirstLeft) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(kCPU, {2, 2});
  EXPECT_EQ(held(mesh, "[S(0), S(0)]", 8), (Held{"0 1", "2 3", "4 5", "6 7"}));
  EXPECT_EQ(held(mesh, "[S(0), S(0)]", 5), (Held{"0 1", "2", "3", "4"}));  // not 2, 2, 1, 0: 3 and 2, then each in two
  EXPECT_EQ(held(mesh, "[S(0), S(0)]", 1), (Held{"0", "", "", ""}));
  EXPECT_EQ(held(mesh, "[R, S(0)]", 3), (Held{"0 1", "2", "0 1", "2"}));
}

TEST(IntervalsOf, AStridedShardTakesItsPartOfEachBlock) {
  auto world = simulate(2);
  auto mesh = init_device_mesh(kCPU, {2});
  EXPECT_EQ(held(mesh, "[SS(0, 2)]", 8), (Held{"0 1 4 5", "2 3 6 7"}));
  EXPECT_EQ(held(mesh, "[SS(0, 4)]", 8), (Held{"0 2 4 6", "1 3 5 7"}));
  EXPECT_EQ(held(mesh, "[SS(0, 1)]", 8), held(mesh, "[S(0)]", 8));
}

TEST(IntervalsOf, UnevenBlocksAndPartsAreBothChunks) {
  auto world = simulate(2);
  auto mesh = init_device_mesh(kCPU, {2});
  EXPECT_EQ(held(mesh, "[SS(0, 2)]", 5), (Held{"0 1 3", "2 4"}));      // blocks 0 1 2 | 3 4
  EXPECT_EQ(held(mesh, "[SS(0, 3)]", 7), (Held{"0 1 3 4 6", "2 5"}));  // blocks 0 1 2 | 3 4 5 | 6
  EXPECT_EQ(held(mesh, "[SS(0, 4)]", 2), (Held{"0 1", ""}));           // more blocks than positions
  EXPECT_EQ(held(mesh, "[SS(0, 2)]", 0), (Held{"", ""}));
}

TEST(IntervalsOf, GatheringTheOuterOfTwoCutsLeavesAStridedOne) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(kCPU, {2, 2});
  for (int64_t size = 0; size <= 12; ++size) {
    auto nested = held(mesh, "[S(0), S(0)]", size), strided = held(mesh, "[R, SS(0, 2)]", size);
    for (int64_t column = 0; column < 2; ++column) {
      auto joined = nested[column] + (nested[column + 2].empty() ? "" : " ") + nested[column + 2];
      EXPECT_EQ(strided[column], joined) << "size " << size;
    }
  }
}

TEST(IntervalsOf, AdjacentPiecesAreOneInterval) {
  auto world = simulate(1);
  auto* layout = Layout::get(init_device_mesh(kCPU, {1}), {StridedShard(0, 4)});
  EXPECT_EQ(intervals_of(*layout, 0, 8, {0}), (Intervals{{0, 8}}));
}

TEST(IntervalsOf, ShardsDealOutEveryPositionOnce) {
  auto world = simulate(12);
  auto mesh = init_device_mesh(kCPU, {2, 3, 2});
  for (auto* placements :
       {"[S(0), S(0), S(0)]", "[SS(0, 3), S(0), S(0)]", "[S(0), SS(0, 2), S(0)]", "[SS(0, 2), SS(0, 3), SS(0, 5)]"}) {
    for (int64_t size : {0, 1, 5, 8, 12, 13, 31}) {
      std::vector<int> times(size, 0);
      auto* layout = Layout::get(mesh, parse_placements(placements));
      for (auto& slot : mesh.slots()) {
        for (auto& piece : intervals_of(*layout, 0, size, slot.coordinate)) {
          for (auto i = piece.begin; i < piece.end; ++i) ++times.at(i);
        }
      }
      EXPECT_EQ(times, std::vector<int>(size, 1)) << placements << " of " << size;
    }
  }
}

TEST(IntervalsOf, MoreBlocksThanPositionsAreAsManyAsPositions) {
  auto world = simulate(4);
  auto line = init_device_mesh(kCPU, {4}), square = init_device_mesh(kCPU, {2, 2});
  for (int64_t size = 0; size <= 9; ++size) {
    for (auto split : {std::max<int64_t>(size, 1), int64_t{1000000000}, std::numeric_limits<int64_t>::max()}) {
      auto text = "SS(0, " + std::to_string(split) + ")";
      auto expected = held(line, "[SS(0, 9)]", size);
      EXPECT_EQ(held(line, ("[" + text + "]").c_str(), size), expected) << split << " blocks of " << size;
      EXPECT_EQ(held(square, ("[S(0), " + text + "]").c_str(), size), held(square, "[S(0), SS(0, 9)]", size));
      EXPECT_EQ(held(square, ("[" + text + ", " + text + "]").c_str(), size), expected)
          << split << " blocks of " << size;
    }
  }
}

// A million runs, cut once more into as many: as work for every pair of the two, this would take hours.
TEST(IntervalsOf, WorkGrowsWithTheSize) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(kCPU, {2, 2});
  int64_t blocks = 1 << 20;
  auto* layout = Layout::get(mesh, {StridedShard(0, blocks), StridedShard(0, blocks)});
  auto runs = intervals_of(*layout, 0, 4 * blocks, {1, 1});
  ASSERT_EQ(runs.size(), blocks);
  EXPECT_EQ(runs.front(), (Interval{3, 4}));
  EXPECT_EQ(runs.back(), (Interval{4 * blocks - 1, 4 * blocks}));
}

TEST(Overlap, OfRunsThatDoNotMeetIsEmpty) {
  EXPECT_EQ(overlap({0, 4}, {2, 6}), (Interval{2, 4}));
  EXPECT_EQ(overlap({0, 9}, {2, 6}), (Interval{2, 6}));
  EXPECT_EQ(overlap({0, 2}, {2, 6}).size(), 0);
  EXPECT_EQ(overlap({7, 9}, {2, 6}).size(), 0);
}

TEST(HeldByMembers, ReadsTheAxesThatCutTheDimAsOne) {
  auto world = simulate(8);
  auto mesh = init_device_mesh(kCPU, {2, 2, 2});
  auto* layout = Layout::get(mesh, {Shard(0), Shard(1), Shard(0)});
  EXPECT_EQ(held_by_members(*layout, 0, 5), (std::vector<Intervals>{{{0, 2}}, {{2, 3}}, {{3, 4}}, {{4, 5}}}));
  EXPECT_EQ(held_by_members(*layout, 0, 5, {2}, {1, 0, 0}), (std::vector<Intervals>{{{3, 4}}, {{4, 5}}}));
  EXPECT_EQ(held_by_members(*layout, 2, 5), (std::vector<Intervals>{{{0, 5}}}));
}

TEST(HeldAlong, IsOneRunPerMember) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(kCPU, {4});
  EXPECT_EQ(held_along(*Layout::get(mesh, {Shard(0)}), 0, 5), (std::vector<Interval>{{0, 2}, {2, 4}, {4, 5}, {5, 5}}));
  EXPECT_THROW(held_along(*Layout::get(mesh, {StridedShard(0, 2)}), 0, 8), c10::Error);
}

TEST(LocalShape, EachDimIsCutByItsAxes) {
  auto world = simulate(6);
  auto mesh = init_device_mesh(kCPU, {2, 3});
  auto* layout = Layout::get(mesh, {Shard(2), Shard(0)});
  EXPECT_EQ(local_shape(*layout, {5, 7, 3}, {0, 0}), (Dims{2, 7, 2}));
  EXPECT_EQ(local_shape(*layout, {5, 7, 3}, {1, 2}), (Dims{1, 7, 1}));
  EXPECT_EQ(local_shape(*layout, {1, 0, 1}, {1, 2}), (Dims{0, 0, 0}));
}

TEST(LocalShape, OneDimMayBeCutTwice) {
  auto world = simulate(6);
  auto mesh = init_device_mesh(kCPU, {2, 3});
  auto* layout = Layout::get(mesh, {Shard(1), Shard(1)});
  Ints columns;
  for (auto& slot : mesh.slots()) columns.push_back(local_shape(*layout, {4, 8}, slot.coordinate)[1]);
  EXPECT_EQ(columns, (Ints{2, 2, 0, 2, 2, 0}));
}

TEST(LocalShape, PartialAndReplicateKeepTheShape) {
  auto world = simulate(4);
  auto* layout = Layout::get(init_device_mesh(kCPU, {2, 2}), {Partial(), Replicate()});
  EXPECT_EQ(local_shape(*layout, {5, 3}, {1, 1}), (Dims{5, 3}));
  EXPECT_EQ(local_shape(*layout, {}, {1, 1}), (Dims()));
}

TEST(LocalOffset, IsTheFirstPositionHeld) {
  auto world = simulate(6);
  auto* layout = Layout::get(init_device_mesh(kCPU, {2, 3}), {Shard(2), Shard(0)});
  EXPECT_EQ(local_offset(*layout, {5, 7, 3}, {0, 0}), (Dims{0, 0, 0}));
  EXPECT_EQ(local_offset(*layout, {5, 7, 3}, {1, 2}), (Dims{4, 0, 2}));
}

TEST(LocalOffset, OfAnEmptyShardIsTheExtent) {
  auto world = simulate(4);
  auto* layout = Layout::get(init_device_mesh(kCPU, {4}), {Shard(0)});
  EXPECT_EQ(local_offset(*layout, {5}, {3}), (Dims{5}));
  EXPECT_EQ(local_offset(*layout, {0}, {0}), (Dims{0}));
}

}  // namespace
}  // namespace intarsia::core_layout_test
