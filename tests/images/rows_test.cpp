#include "intarsia/ops/images/rows.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/ops/images/window.h"
#include "intarsia/simulation/simulation.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia::images_rows_test {
namespace {

at::Tensor conv(const at::Tensor& x, const at::Tensor& w, int64_t stride, int64_t padding, int64_t groups = 1) {
  return at::convolution(x, w, {}, {stride, stride}, {padding, padding}, {1, 1}, false, {0, 0}, groups);
}

TEST(Window, OutputsReadTheRowsUnderTheirKernels) {
  Window window{3, 1, 1, 1};
  EXPECT_EQ(read_by(window, {0, 2}), (Interval{-1, 3}));
  EXPECT_EQ(read_by(window, {2, 4}), (Interval{1, 5}));
  EXPECT_EQ(read_by(window, {2, 2}).size(), 0);
  EXPECT_EQ(read_by(Window{2, 3, 2, 4}, {1, 3}), (Interval{1, 9}));
}

TEST(Window, TransposedOutputsReadTheRowsThatWriteThem) {
  // By trial: row i writes i * stride - padding + k * dilation.
  for (int64_t stride = 1; stride < 4; ++stride) {
    for (int64_t kernel = 1; kernel < 4; ++kernel) {
      for (int64_t padding = 0; padding < 3; ++padding) {
        Window window{kernel, stride, padding, 2, true};
        for (int64_t begin = 0; begin < 5; ++begin) {
          auto rows = read_by(window, {begin, begin + 2});
          for (int64_t i = -20; i < 20; ++i) {
            auto written = written_by(window, {i, i + 1});
            bool lands = overlap(written, {begin, begin + 2}).size() > 0;
            EXPECT_EQ(lands, rows.begin <= i && i < rows.end);
          }
        }
      }
    }
  }
}

TEST(Window, WhatSticksOutIsPadding) {
  auto clipped = clip({-2, 9}, 7);
  EXPECT_EQ(clipped.inside, (Interval{0, 7}));
  EXPECT_EQ(clipped.before, 2);
  EXPECT_EQ(clipped.after, 2);
  EXPECT_EQ(clip({-5, -2}, 7).inside.size(), 0);
  EXPECT_EQ(clip({-5, -2}, 7).before, 3);
}

struct Line {
  explicit Line(int64_t n) : world(n), mesh(init_device_mesh(at::kCPU, {n}, {"w"})) {}
  Simulation world;
  DeviceMesh mesh;
  const Axis& axis() { return Axis::of(mesh, 0); }
};

TEST(Rows, AreFetchedAcrossSeveralNeighboursAndReturnedByTheAdjoint) {
  Line line(4);
  auto* layout = Layout::get(line.mesh, {Shard(0)});
  RowPlan plan{0, held_along(*layout, 0, 5), {{0, 5}, {1, 4}, {0, 0}, {2, 5}}};  // held: 2, 2, 1, 0
  auto whole = at::arange(5, at::kDouble);
  auto shards = shards_of(distribute_tensor(whole, line.mesh, {Shard(0)}));
  auto fetched = fetch_rows(shards, plan, line.axis());
  for (int64_t r = 0; r < 4; ++r) {
    EXPECT_TRUE(at::equal(fetched[r], whole.narrow(0, plan.needed[r].begin, plan.needed[r].size())));
  }
  // <fetch(x), y> = <x, return(y)>
  Shards cotangents;
  double left = 0, right = 0;
  for (auto& rows : fetched) cotangents.push_back(at::randn_like(rows));
  auto returned = return_rows(cotangents, plan, line.axis());
  for (int64_t r = 0; r < 4; ++r) {
    left += (fetched[r] * cotangents[r]).sum().item<double>();
    right += (shards[r] * returned[r]).sum().item<double>();
  }
  EXPECT_NEAR(left, right, 1e-12);
}

TEST(Rows, NothingTravelsWhereEveryRankHasWhatItNeeds) {
  Line line(2);
  RowPlan plan{0, {{0, 4}, {4, 8}}, {{0, 3}, {5, 8}}};
  CommDebugMode comms;
  auto shards = shards_of(distribute_tensor(at::arange(8.), line.mesh, {Shard(0)}, std::nullopt));
  EXPECT_EQ(fetch_rows(shards, plan, line.axis())[1].size(0), 3);
  EXPECT_EQ(comms.text(), "");
}

// 2x3x4 floats per column: 96 bytes.
TEST(ConvolutionTrace, OnlyHaloRowsTravelInOneExchangePerCutDim) {
  Line line(4);
  auto x = distribute_tensor(at::randn({2, 3, 4, 8}), line.mesh, {Shard(3)}).requires_grad_();
  auto w = distribute_tensor(at::randn({5, 3, 3, 3}), line.mesh, {Replicate()});
  CommDebugMode comms;
  auto out = conv(x, w, 1, 1);
  EXPECT_EQ(comms.text(), "halo w 192B\n");  // ranks in the middle: one column from either side
  EXPECT_EQ(str(placements_of(out)), "[S(3)]");
  out.backward(out.detach());
  EXPECT_EQ(comms.text(), "halo w 192B\nhalo w 192B\n");  // no gradient of the weight: the input is not fetched again
}

TEST(ConvolutionTrace, AStrideThatFitsTheShardsNeedsNoRows) {
  Line line(4);
  auto x = distribute_tensor(at::randn({2, 3, 4, 16}), line.mesh, {Shard(3)}).requires_grad_();
  auto w = distribute_tensor(at::randn({5, 3, 4, 4}), line.mesh, {Replicate()}).requires_grad_();
  CommDebugMode comms;
  auto out = conv(x, w, 4, 0);
  out.backward(out.detach());
  EXPECT_EQ(comms.text(), "");
}

TEST(ConvolutionTrace, TwoCutDimsMakeTwoExchanges) {
  Simulation world(4);
  auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"h", "w"});
  auto x = distribute_tensor(at::randn({1, 1, 4, 4}), mesh, {Shard(2), Shard(3)});
  auto w = distribute_tensor(at::randn({1, 1, 3, 3}), mesh, {Replicate(), Replicate()});
  CommDebugMode comms;
  conv(x, w, 1, 1);
  EXPECT_EQ(comms.text(), "halo h 8B\nhalo w 12B\n");  // the corner comes with the second
}

}  // namespace
}  // namespace intarsia::images_rows_test
