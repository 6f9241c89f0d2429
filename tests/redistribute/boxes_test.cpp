#include "intarsia/redistribute/boxes.h"

#include <gtest/gtest.h>

#include "tests/support/dealer.h"
#include "tests/support/world.h"

namespace intarsia::redistribute_boxes_test {
namespace {

const std::vector<std::string> kLayouts = {"[R, R]",       "[S(0), R]",     "[R, S(1)]",        "[S(0), S(0)]",
                                           "[S(1), S(0)]", "[SS(0, 2), R]", "[S(0), SS(0, 3)]", "[SS(1, 2), S(0)]"};

TEST(Boxes, TellWhatAShardHoldsAndWhereItStandsInIt) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(c10::kCPU, {2, 2});
  for (auto shape : {std::vector<int64_t>{8, 6}, {5, 3}, {1, 1}, {0, 4}, {7, 2}}) {
    auto whole = at::arange(c10::multiply_integers(shape)).reshape(shape);
    for (auto& text : kLayouts) {
      auto* layout = Layout::get(mesh, parse_placements(text));
      auto pieces = deal_out(whole, layout->placements(), {2, 2});
      for (int64_t position = 0; position < 4; ++position) {
        auto expected = pieces[position], found = at::full_like(expected, -1);
        for (auto& [box, local] : boxes_of(*layout, shape, mesh.coordinate_at(position))) {
          view_of_box(found, local, box.shape).copy_(view_of_box(whole, box.begin, box.shape));
        }
        EXPECT_TRUE(found.equal(expected)) << text << " of " << c10::IntArrayRef(shape) << " at " << position;
      }
    }
  }
}

TEST(Boxes, OfAScalarAreOneWithoutDims) {
  auto world = simulate(2);
  auto* layout = Layout::replicated(init_device_mesh(c10::kCPU, {2}));
  auto boxes = boxes_of(*layout, {}, {1});
  ASSERT_EQ(boxes.size(), 1u);
  EXPECT_EQ(boxes[0].box.count(), 1);
  EXPECT_EQ(str(boxes[0].box), "[]");
}

TEST(Boxes, HaveInCommonWhatBothHold) {
  EXPECT_EQ(str(*overlap(Box{{0, 2}, {4, 4}}, Box{{2, 0}, {9, 3}})), "[2:4, 2:3]");
  EXPECT_FALSE(overlap(Box{{0, 0}, {2, 2}}, Box{{2, 0}, {2, 2}}));
}

TEST(Boxes, AreCutIntoPartsThatMakeThemUp) {
  for (auto& box : {Box{{3, 1}, {5, 2}}, Box{{0}, {3}}, Box{{2, 2}, {1, 9}}, Box{{}, {}}, Box{{0, 0}, {0, 3}}}) {
    for (int64_t parts : {1, 2, 4, 7}) {
      std::vector<Box> cut;
      for (int64_t i = 0; i < parts; ++i) cut.push_back(part_of_box(box, parts, i));
      if (box.shape.empty()) cut.resize(1);
      EXPECT_TRUE(make_up(box, cut)) << str(box) << " in " << parts;
    }
  }
}

TEST(Boxes, ThatMeetOrLeaveAGapDoNotMakeUpTheWhole) {
  auto whole = whole_box({4, 4});
  EXPECT_TRUE(make_up(whole, {Box{{0, 0}, {2, 4}}, Box{{2, 0}, {2, 1}}, Box{{2, 1}, {2, 3}}}));
  EXPECT_FALSE(make_up(whole, {Box{{0, 0}, {2, 4}}, Box{{1, 0}, {2, 4}}}));
  EXPECT_FALSE(make_up(whole, {Box{{0, 0}, {2, 4}}}));
  EXPECT_FALSE(make_up(whole, {Box{{0, 0}, {2, 8}}}));
}

TEST(Boxes, KnowWhoElseHoldsThem) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(c10::kCPU, {2, 2});
  EXPECT_EQ(replicas_of(*Layout::get(mesh, {Replicate(), Shard(0)}), {1, 1}), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(replicas_of(*Layout::get(mesh, {Shard(0), Shard(0)}), {1, 0}), (std::vector<int64_t>{2}));
}

}  // namespace
}  // namespace intarsia::redistribute_boxes_test
