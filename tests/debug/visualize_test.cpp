#include "intarsia/debug/visualize.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/nn/distribute_module.h"
#include "intarsia/simulation/simulation.h"
#include "intarsia/tensor/dtensor.h"
#include "tests/support/error_text.h"

namespace intarsia::debug_visualize_test {
namespace {

// The picture of a tensor of `shape` on a 2x2 mesh ("dp", "tp").
std::string picture(std::vector<int64_t> shape, const Placements& placements) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
  return visualize_sharding(zeros(shape, mesh, placements));
}

TEST(VisualizeSharding, DrawsAGridWhereBothDimsAreCut) {
  EXPECT_EQ(picture({4, 6}, {Shard(0), Shard(1)}),
            "[4, 6] as [S(0), S(1)] on DeviceMesh(cpu, dp=2, tp=2)\n"
            "        0-2   3-5\n"
            "      ┌─────┬─────┐\n"
            "  0-1 │ 0   │ 1   │\n"
            "      ├─────┼─────┤\n"
            "  2-3 │ 2   │ 3   │\n"
            "      └─────┴─────┘\n");
}

TEST(VisualizeSharding, AReplicatedAxisPutsSeveralRanksIntoABox) {
  EXPECT_EQ(picture({5}, {Replicate(), Shard(0)}),
            "[5] as [R, S(0)] on DeviceMesh(cpu, dp=2, tp=2)\n"
            "     0-2    3-4\n"
            "   ┌──────┬──────┐\n"
            "   │ 0, 2 │ 1, 3 │\n"
            "   └──────┴──────┘\n");
}

TEST(VisualizeSharding, StridedPiecesAppearWhereTheyLie) {
  EXPECT_EQ(picture({8}, {Replicate(), StridedShard(0, 2)}),
            "[8] as [R, SS(0, 2)] on DeviceMesh(cpu, dp=2, tp=2)\n"
            "     0-1    2-3    4-5    6-7\n"
            "   ┌──────┬──────┬──────┬──────┐\n"
            "   │ 0, 2 │ 1, 3 │ 0, 2 │ 1, 3 │\n"
            "   └──────┴──────┴──────┴──────┘\n");
}

TEST(VisualizeSharding, NamesRanksThatHoldNothing) {
  EXPECT_EQ(picture({2, 3}, {Shard(0), Shard(0)}),
            "[2, 3] as [S(0), S(0)] on DeviceMesh(cpu, dp=2, tp=2)\n"
            "      0-2\n"
            "    ┌─────┐\n"
            "  0 │ 0   │\n"
            "    ├─────┤\n"
            "  1 │ 2   │\n"
            "    └─────┘\n"
            "  nothing on 1, 3\n");
}

TEST(VisualizeSharding, SaysThatPendingValuesAreTerms) {
  EXPECT_EQ(picture({}, {Partial(), Replicate()}),
            "[] as [P(sum), R] on DeviceMesh(cpu, dp=2, tp=2)\n"
            "   ┌─────┐\n"
            "   │ 0-3 │\n"
            "   └─────┘\n"
            "  every rank holds a term: the value is the reduction over the axes with P\n");
}

TEST(VisualizeSharding, AnEmptyTensorIsAnEmptyBox) {
  EXPECT_EQ(picture({0}, {Shard(0), Replicate()}),
            "[0] as [S(0), R] on DeviceMesh(cpu, dp=2, tp=2)\n"
            "     none\n"
            "   ┌──────┐\n"
            "   │      │\n"
            "   └──────┘\n"
            "  nothing on 0-3\n");
}

TEST(VisualizeSharding, DrawsOnePictureForEveryGroupOfASlicedMesh) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"})["tp"];
  auto text = visualize_sharding(zeros({2}, mesh, {Shard(0)}));
  EXPECT_NE(text.find("│ 0 │ 1 │"), std::string::npos) << text;
  EXPECT_NE(text.find("│ 2 │ 3 │"), std::string::npos) << text;
}

TEST(VisualizeSharding, ColourGivesEverySetOfRanksABackground) {
  auto world = simulate(2);
  auto mesh = init_device_mesh(at::kCPU, {2});
  auto text = visualize_sharding(zeros({2}, mesh, {Shard(0)}), true);
  EXPECT_NE(text.find("│\033[30;41m 0 \033[0m│\033[30;42m 1 \033[0m│"), std::string::npos) << text;
}

TEST(VisualizeSharding, MoreThanTwoDimsAndPlainTensorsAreErrors) {
  EXPECT_EQ(error_text<c10::ValueError>([] { picture({1, 2, 3}, {Replicate(), Replicate()}); }),
            "[visualize_sharding] the tensor of shape [1, 2, 3] has 3 dims, and a picture has two. "
            "Use describe(tensor), or visualize a slice of it.");
  EXPECT_EQ(error_text<c10::TypeError>([] { visualize_sharding(torch::ones({2})); }),
            "[visualize_sharding] needs a distributed tensor, but got a plain one of shape [2]. "
            "Make one with distribute_tensor.");
}

TEST(Describe, ListsParametersAndBuffersWithTheirLocalShapes) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(at::kCPU, {4}, {"tp"});
  torch::nn::Linear fc(3, 5);
  EXPECT_EQ(describe(*fc),
            "name    shape   dtype  placements  local shape\n"
            "weight  [5, 3]  Float  plain\n"
            "bias    [5]     Float  plain\n");
  distribute_parameter(fc->weight, mesh, {Shard(0)});
  distribute_module(*fc, mesh);
  EXPECT_EQ(describe(*fc),
            "name    shape   dtype  placements  local shape\n"
            "weight  [5, 3]  Float  [S(0)]      [2, 3] on 0-1, [1, 3] on 2, [0, 3] on 3\n"
            "bias    [5]     Float  [R]         [5]\n");
}

TEST(Describe, FitsOneTensorOnALine) {
  auto world = simulate(2);
  auto mesh = init_device_mesh(at::kCPU, {2});
  EXPECT_EQ(describe(zeros({2, 2, 3}, mesh, {Shard(2)})),
            "[2, 2, 3] Float [S(2)] on DeviceMesh(cpu, 2): [2, 2, 2] on 0, [2, 2, 1] on 1");
  EXPECT_EQ(describe(torch::ones({2})), "[2] Float plain");
  EXPECT_EQ(describe(at::Tensor()), "undefined");
}

}  // namespace
}  // namespace intarsia::debug_visualize_test
