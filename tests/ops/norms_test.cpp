// Normalizations and statistics over cut dims: exact, and only sums travel.

#include <limits>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "tests/support/compare.h"
#include "tests/support/world.h"
#include "tests/support/worlds.h"

namespace intarsia::ops_norms_test {
namespace {

using Strings = std::vector<std::string>;
constexpr auto kInfinity = std::numeric_limits<double>::infinity();

DeviceMesh line(int64_t n) { return init_device_mesh(at::kCPU, {n}, {"tp"}); }
DeviceMesh square() { return init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"}); }

// All ways to lay out a tensor of `ndim` dims on one axis.
Strings layouts(int64_t ndim) {
  Strings all = {"[R]", "[P(sum)]"};
  for (int64_t d = 0; d < ndim; ++d) all.push_back("[S(" + std::to_string(d) + ")]");
  return all;
}

TEST(LayerNorm, IsExactOnEveryLayout) {
  for (int64_t n : {2, 3, 4}) {
    auto world = simulate(n);
    for (auto& at : layouts(3)) {
      for (auto& weight : {"[R]", "[S(0)]"}) {
        auto last = [](auto& t) { return at::layer_norm(t[0], {5}, t[1], t[2]); };
        EXPECT_EQ(compare(last, {waves({3, 4, 5}), waves({5}), waves({5})}, line(n), {at, weight, weight}), "") << at;
        auto two = [](auto& t) { return at::layer_norm(t[0], {4, 5}, t[1]); };
        EXPECT_EQ(compare(two, {waves({3, 4, 5}), waves({4, 5})}, line(n), {at, weight}), "") << at;
      }
      auto bare = [](auto& t) { return at::layer_norm(t[0], {3, 4, 5}); };
      EXPECT_EQ(compare(bare, {waves({3, 4, 5})}, line(n), {at}), "") << at;
    }
  }
}

TEST(LayerNorm, OverACutDimMovesStatisticsOnly) {
  auto world = simulate(4);
  auto x = lay_out(waves({3, 64}).to(at::kFloat), line(4), {Shard(1)}).requires_grad_();
  auto weight = lay_out(waves({64}).to(at::kFloat), line(4), {Shard(0)}).requires_grad_();
  CommDebugMode comms;
  auto y = at::layer_norm(x, {64}, weight);
  EXPECT_EQ(str(placements_of(y)), "[S(1)]");
  EXPECT_EQ(comms.text(), "all_reduce(sum) tp 18B\nall_reduce(sum) tp 18B\n");
  comms.enter();
  y.backward(at::ones_like(y));
  EXPECT_EQ(comms.text(), "all_reduce(sum) tp 18B\nall_reduce(sum) tp 18B\n");
  EXPECT_EQ(str(placements_of(weight.grad())), "[S(0)]");
}

TEST(LayerNorm, OfACutSequenceLeavesGradientsOfWeightsPending) {
  auto world = simulate(2);
  auto x = lay_out(waves({3, 4, 6}), line(2), {Shard(1)}).requires_grad_();
  auto weight = lay_out(waves({6}), line(2), {Replicate()}).requires_grad_();
  CommDebugMode comms;
  auto y = at::layer_norm(x, {6}, weight);
  y.backward(at::ones_like(y));
  EXPECT_EQ(comms.text(), "");
  EXPECT_EQ(str(placements_of(weight.grad())), "[P(sum)]");
}

TEST(RmsNorm, IsExactOnEveryLayout) {
  for (int64_t n : {2, 3}) {
    auto world = simulate(n);
    for (auto& at : layouts(3)) {
      auto norm = [](auto& t) { return at::rms_norm(t[0], {5}, t[1], 1e-5); };
      EXPECT_EQ(compare(norm, {waves({3, 4, 5}), waves({5})}, line(n), {at, "[R]"}), "") << at;
      EXPECT_EQ(compare(norm, {waves({3, 4, 5}), waves({5})}, line(n), {at, "[S(0)]"}), "") << at;
    }
  }
}

TEST(RmsNorm, AddsTheSmallestNumberOfItsTypeIfNoneIsGiven) {
  auto world = simulate(3);
  auto norm = [](const at::Tensor& x) { return at::rms_norm(x, {5}); };
  for (auto dtype : {at::kDouble, at::kFloat, at::kComplexDouble, at::kComplexFloat, at::kBFloat16}) {
    auto small = (waves({4, 5}) * 1e-4).to(dtype);
    auto expected = norm(small), actual = full_tensor(norm(distribute_tensor(small, line(3), {Shard(0)})));
    EXPECT_TRUE(at::allclose(actual, expected, 1e-6, 0)) << dtype << "\n" << actual << "\nnot\n" << expected;
  }
}

TEST(RmsNorm, OfATransposedTensorIsContiguous) {
  auto world = simulate(3);
  for (auto& placement : {Placement(Shard(0)), Placement(Shard(1)), Placement(Replicate())}) {
    auto x = distribute_tensor(waves({5, 4, 3}), line(3), {placement}).transpose(0, 2);
    EXPECT_EQ(at::rms_norm(x, {5}).strides(), at::rms_norm(waves({5, 4, 3}).transpose(0, 2), {5}).strides());
  }
}

TEST(GroupNorm, IsExactOnEveryLayout) {
  for (int64_t n : {2, 3}) {
    auto world = simulate(n);
    for (auto& at : layouts(4)) {
      for (int64_t groups : {1, 2, 3, 6}) {
        auto norm = [&](auto& t) { return at::group_norm(t[0], groups, t[1], t[2]); };
        EXPECT_EQ(compare(norm, {waves({3, 6, 2, 5}), waves({6}), waves({6})}, line(n), {at, "[R]", "[R]"}), "")
            << at << " " << groups;
        auto bare = [&](auto& t) { return at::group_norm(t[0], groups); };
        EXPECT_EQ(compare(bare, {waves({3, 6, 2, 5})}, line(n), {at}), "") << at << " " << groups;
      }
    }
  }
}

TEST(BatchNorm, UsesTheStatisticsOfTheWholeBatch) {
  for (int64_t n : {2, 3, 4}) {
    auto world = simulate(n);
    for (auto& at : layouts(4)) {
      for (bool training : {true, false}) {
        auto norm = [&](auto& t) {
          auto mean = t[3].detach().clone(), var = t[4].detach().abs() + 0.5;
          return at::batch_norm(t[0], t[1], t[2], mean, var, training, 0.1, 1e-5, false);
        };
        EXPECT_EQ(compare(norm, {waves({5, 3, 2, 2}), waves({3}), waves({3}), waves({3}), waves({3})}, line(n),
                          {at, "[R]", "[R]", "[R]", "[R]"}),
                  "")
            << at << " " << training;
      }
    }
  }
}

TEST(BatchNorm, FollowsTheRunningStatistics) {
  auto world = simulate(4);
  auto x = waves({5, 3, 2});
  auto mean = at::zeros({3}, at::kDouble), var = at::ones({3}, at::kDouble);
  auto cut_mean = lay_out(mean, square(), parse_placements("[R, R]")),
       cut_var = lay_out(var, square(), parse_placements("[R, S(0)]"));
  for (int step = 0; step < 2; ++step) {
    at::batch_norm(x, {}, {}, mean, var, true, 0.1, 1e-5, false);
    at::batch_norm(lay_out(x, square(), parse_placements("[S(0), S(2)]")), {}, {}, cut_mean, cut_var, true, 0.1, 1e-5,
                   false);
  }
  EXPECT_EQ(difference(full_tensor(cut_mean), mean, 1e-12), "");
  EXPECT_EQ(difference(full_tensor(cut_var), var, 1e-12), "");
}

TEST(Norms, WorkOnTwoAxes) {
  auto world = simulate(4);
  auto layer = [](auto& t) { return at::layer_norm(t[0], {5}, t[1], t[2]); };
  for (auto at : {"[S(0), S(2)]", "[S(2), S(2)]", "[S(1), S(0)]", "[S(2), P(sum)]"}) {
    EXPECT_EQ(compare(layer, {waves({3, 4, 5}), waves({5}), waves({5})}, square(), {at, "[R, R]", "[R, S(0)]"}), "")
        << at;
    auto batch = [](auto& t) { return at::batch_norm(t[0], t[1], t[2], {}, {}, true, 0.1, 1e-5, false); };
    EXPECT_EQ(compare(batch, {waves({3, 4, 5}), waves({4}), waves({4})}, square(), {at, "[R, R]", "[R, S(0)]"}), "")
        << at;
    auto group = [](auto& t) { return at::group_norm(t[0], 2, t[1], t[2]); };
    EXPECT_EQ(compare(group, {waves({3, 4, 5}), waves({4}), waves({4})}, square(), {at, "[R, R]", "[R, S(0)]"}), "")
        << at;
  }
}

TEST(Statistics, OverCutDimsAreExact) {
  for (int64_t n : {2, 3, 4}) {
    auto world = simulate(n);
    for (auto& at : layouts(3)) {
      for (auto& dims : std::vector<std::vector<int64_t>>{{0}, {1}, {-1}, {0, 2}, {0, 1, 2}}) {
        for (double correction : {0.0, 1.0}) {
          SCOPED_TRACE(at + " " + std::to_string(dims.size()) + " dims from " + std::to_string(dims[0]));
          std::vector<at::Tensor> x = {waves({3, 5, 4}) + 100};
          auto c = at::Scalar(correction);
          EXPECT_EQ(compare([&](auto& t) { return at::var(t[0], dims, c, false); }, x, line(n), {at}, 1e-10), "");
          EXPECT_EQ(compare([&](auto& t) { return at::std(t[0], dims, c, true); }, x, line(n), {at}, 1e-10), "");
          EXPECT_EQ(compare([&](auto& t) { return std::get<1>(at::var_mean(t[0], dims, c, true)); }, x, line(n), {at}),
                    "");
          EXPECT_EQ(compare([&](auto& t) { return std::get<0>(at::std_mean(t[0], dims, c)); }, x, line(n), {at}, 1e-10),
                    "");
        }
        for (double p : {0.0, 1.0, 2.0, 3.0, 0.5, -1.0, kInfinity, -kInfinity}) {
          EXPECT_EQ(compare([&](auto& t) { return at::linalg_vector_norm(t[0], p, dims, true); }, {waves({3, 5, 4})},
                            line(n), {at}),
                    "")
              << at << " p " << p;
          EXPECT_EQ(compare([&](auto& t) { return at::norm(t[0], p, dims, false); }, {waves({3, 5, 4})}, line(n), {at}),
                    "")
              << at << " p " << p;
        }
      }
      EXPECT_EQ(compare([&](auto& t) { return t[0].norm(); }, {waves({3, 5, 4})}, line(n), {at}), "") << at;
    }
  }
}

TEST(Statistics, MoveOneNumberPerLine) {
  auto world = simulate(4);
  auto x = lay_out(waves({3, 64}).to(at::kFloat), line(4), {Shard(1)});
  CommDebugMode comms;
  auto var = at::var(x, {1});
  EXPECT_EQ(str(placements_of(var)), "[P(sum)]");
  auto norm = at::linalg_vector_norm(x, kInfinity, std::vector<int64_t>{1});
  EXPECT_EQ(str(placements_of(norm)), "[P(max)]");
  EXPECT_EQ(comms.text(), "all_reduce(sum) tp 18B\n");
}

// Squares of 300 are beyond a half, and sums of many small terms beyond its digits.
TEST(TotalNorm, OfHalvesIsSummedInFloat) {
  for (auto type : {at::kHalf, at::kBFloat16}) {
    for (double value : {300., 0.01}) {
      auto whole = at::full({40, 50}, value, type);
      for_each_world({1, 2, 3, 4}, [&](int64_t n) {
        for (auto cut : {"[R]", "[S(0)]", "[S(1)]"}) {
          auto x = lay_out(whole, init_device_mesh(at::kCPU, {n}), parse_placements(cut));
          auto norm = full_tensor(at::norm(x, 2));
          EXPECT_EQ(norm.scalar_type(), type);
          EXPECT_EQ(difference(norm, at::norm(whole, 2), type == at::kHalf ? 1e-3 : 8e-3), "") << cut << " on " << n;
        }
      });
    }
  }
}

}  // namespace
}  // namespace intarsia::ops_norms_test
