#include "intarsia/redistribute/cut_dims.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/intarsia.h"

namespace intarsia {
namespace {

TEST(CutDims, OpsOverACutDimGatherItWhereTheyAreToldTo) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(at::kCPU, {4});
  auto x = torch::randn({6, 3});
  auto cut = distribute_tensor(x, mesh, {Shard(0)});
  EXPECT_EQ(str(placements_of(cut.softmax(0))), "[S(0)]");
  CutDimsScope scope(CutDims::gather);
  EXPECT_EQ(str(placements_of(cut.softmax(0))), "[R]");
  EXPECT_EQ(str(placements_of(cut.cumsum(0))), "[R]");
  EXPECT_EQ(str(placements_of(cut.softmax(1))), "[S(0)]");
  EXPECT_TRUE(at::allclose(full_tensor(cut.softmax(0)), x.softmax(0)));
}

TEST(CutDims, TheInnermostScopeCounts) {
  set_cut_dims(CutDims::gather);
  {
    CutDimsScope scope(CutDims::stay);
    EXPECT_EQ(cut_dims(), CutDims::stay);
  }
  EXPECT_EQ(cut_dims(), CutDims::gather);
  set_cut_dims(CutDims::stay);
  EXPECT_EQ(cut_dims(), CutDims::stay);
}

TEST(CutDims, ConvolutionsExchangeBordersEitherWay) {
  auto world = simulate(2);
  auto mesh = init_device_mesh(at::kCPU, {2});
  auto image = torch::randn({1, 1, 4, 8}), weight = torch::randn({1, 1, 3, 3});
  CutDimsScope scope(CutDims::gather);
  auto out = at::conv2d(distribute_tensor(image, mesh, {Shard(3)}), distribute_tensor(weight, mesh, {Replicate()}), {}, 1, 1);
  EXPECT_EQ(str(placements_of(out)), "[S(3)]");
  EXPECT_TRUE(at::allclose(full_tensor(out), at::conv2d(image, weight, {}, 1, 1), 1e-5, 1e-5));
}

}  // namespace
}  // namespace intarsia
