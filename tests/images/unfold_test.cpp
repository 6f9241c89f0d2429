// Unfold, fold, and ops that read and write at positions which are data.

#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/simulation/simulation.h"
#include "tests/images/cut_at_random.h"

namespace intarsia::images_unfold_test {
namespace {

namespace F = torch::nn::functional;
using Ints = std::vector<int64_t>;

struct Form {
  Ints image, kernel, dilation, padding, stride;
};

std::vector<Form> forms() {
  return {{{7, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},  {{9, 11}, {2, 3}, {2, 1}, {0, 2}, {2, 3}},
          {{5, 8}, {5, 2}, {1, 2}, {0, 1}, {1, 2}},  {{4, 3}, {4, 3}, {1, 1}, {0, 0}, {1, 1}},
          {{3, 12}, {1, 4}, {1, 1}, {0, 0}, {2, 4}}, {{2, 2}, {3, 3}, {1, 1}, {2, 2}, {2, 1}}};
}

TEST(Unfold, OfImagesCutAtRandom) {
  for (auto& f : forms()) {
    auto op = [=](const at::Tensor& x) -> Results {
      return {at::im2col(x, f.kernel, f.dilation, f.padding, f.stride)};
    };
    for (int repeat = 0; repeat < 3; ++repeat) {
      compare_cut_at_random("unfold", random_image(f.image), 1, false, op);
      compare_cut_at_random("unfold, no batch", random_image(f.image)[0], 0, false, op);
    }
  }
}

TEST(Fold, OfColumnsCutAtRandom) {
  for (auto& f : forms()) {
    auto columns = at::im2col(random_image(f.image), f.kernel, f.dilation, f.padding, f.stride);
    auto op = [=](const at::Tensor& x) -> Results {
      return {at::col2im(x, f.image, f.kernel, f.dilation, f.padding, f.stride)};
    };
    for (int repeat = 0; repeat < 3; ++repeat) {
      compare_cut_at_random("fold", at::randn_like(columns), 1, false, op);
      compare_cut_at_random("fold, no batch", at::randn_like(columns[0]), 0, false, op);
    }
  }
}

TEST(Unfold, ThereAndBackKeepsTheCutAndFetchesOnlyRowsUnderWindows) {
  Simulation world(4);
  auto mesh = init_device_mesh(at::kCPU, {4}, {"w"});
  for (int64_t dim : {2, 3}) {
    auto whole = at::randn({1, 2, 8, 8});
    auto x = distribute_tensor(whole, mesh, {Shard(dim)});
    CommDebugMode comms;
    auto columns = at::im2col(x, {3, 3}, {1, 1}, {1, 1}, {1, 1});
    EXPECT_EQ(comms.text(), "halo w 128B\n");  // two rows of 2x8 floats
    EXPECT_EQ(str(placements_of(columns)), dim == 2 ? "[S(2)]" : "[SS(2, 8)]");
    auto back = at::col2im(columns, {8, 8}, {3, 3}, {1, 1}, {1, 1}, {1, 1});
    EXPECT_EQ(comms.text(), "halo w 128B\nhalo w 128B\n");  // what its columns add to the rows of others
    EXPECT_EQ(str(placements_of(back)), str(Placements{Shard(dim)}));
  }
}

TEST(Unfold, OfABatchOrOfWholeChannelsSendsNothing) {
  Simulation world(2);
  auto mesh = init_device_mesh(at::kCPU, {2});
  for (int64_t dim : {0, 1}) {
    auto x = distribute_tensor(at::randn({2, 4, 5, 5}), mesh, {Shard(dim)});
    CommDebugMode comms;
    auto columns = F::unfold(x, F::UnfoldFuncOptions({2, 2}));
    F::fold(columns, F::FoldFuncOptions({5, 5}, {2, 2}));
    EXPECT_EQ(comms.text(), "");
  }
}

TEST(Unpool, OfMaximaCutAtRandom) {
  auto two = [](const at::Tensor& x) -> Results {
    auto [values, indices] = at::max_pool2d_with_indices(x, {2, 2});
    return {at::max_unpool2d(values, indices, x.sizes().slice(2))};
  };
  compare_cut_at_random("unpool", random_image({6, 8}), 0, false, two);
  compare_cut_at_random("unpool", random_image({4, 2}), 0, false, two);
  compare_cut_at_random("unpool", random_image({4, 2, 6}), 0, false, [](const at::Tensor& x) -> Results {
    auto [values, indices] = at::max_pool3d_with_indices(x, {2, 2, 2});
    return {at::max_unpool3d(values, indices, x.sizes().slice(2), {2, 2, 2}, {0, 0, 0})};
  });
}

TEST(GridSample, OfAnImageCutAtRandomByAReplicatedGrid) {
  for (auto mode : {0, 1, 2}) {
    auto grid = at::rand({2, 5, 7, 2}, at::kDouble) * 2 - 1;
    compare_cut_at_random("grid_sample", random_image({6, 8}), 0, false, [=](const at::Tensor& x) -> Results {
      auto positions = is_dtensor(x) ? lay_out(grid, mesh_of(x), Placements(mesh_of(x).ndim(), Replicate())) : grid;
      return {at::grid_sampler_2d(x, positions, mode, 0, false)};
    });
  }
}

TEST(GridSample, OfAReplicatedImageByAGridCutAtRandom) {
  auto image = random_image({6, 8});
  compare_cut_at_random(
      "grid_sample", at::rand({2, 5, 7, 2}, at::kDouble) * 2 - 1, 1, false, [=](const at::Tensor& grid) -> Results {
        auto whole =
            is_dtensor(grid) ? lay_out(image, mesh_of(grid), Placements(mesh_of(grid).ndim(), Replicate())) : image;
        return {at::grid_sampler_2d(whole, grid, 0, 1, true)};
      });
}

}  // namespace
}  // namespace intarsia::images_unfold_test
