// Pools of random form on images cut at random: values, indices and gradients are those of the plain op.

#include <random>

#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/simulation/simulation.h"
#include "tests/images/cut_at_random.h"

namespace intarsia::images_pool_test {
namespace {

namespace F = torch::nn::functional;
using Ints = std::vector<int64_t>;

void compare(const std::string& text, const at::Tensor& whole, const ImageOp& op) {
  compare_cut_at_random(text, whole, 2, true, op);
}

TEST(Pool, OfRandomFormCutAtRandomIsThePlainOne) {
  std::mt19937_64 engine(7);
  at::manual_seed(7);
  auto dice = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine); };
  for (int trial = 0; trial < 40 && !testing::Test::HasFatalFailure(); ++trial) {
    auto image = trial % 2 + 2;
    Ints size = {2, 3}, kernel, stride, padding, dilation;
    for (int64_t i = 0; i < image; ++i) {
      kernel.push_back(dice(1, 3)), stride.push_back(dice(1, 3)), dilation.push_back(dice(1, 2));
      padding.push_back(dice(0, kernel[i] / 2));
      size.push_back((kernel[i] - 1) * dilation[i] + 1 + dice(0, 6));
    }
    bool ceil = dice(0, 1), include = dice(0, 1);
    auto divisor = dice(0, 2) ? std::nullopt : std::optional<int64_t>(3);
    auto text =
        c10::str("kernel ", kernel, " stride ", stride, " padding ", padding, " dilation ", dilation, " ceil ", ceil);
    auto whole = at::randn(size, at::kDouble);
    compare("max " + text, whole, [&](const at::Tensor& x) -> Results {
      auto pool = image == 2 ? at::max_pool2d_with_indices : at::max_pool3d_with_indices;
      auto [values, indices] = pool(x, kernel, stride, padding, dilation, ceil);
      return {values, indices};
    });
    compare("avg " + text, whole, [&](const at::Tensor& x) -> Results {
      auto pool = image == 2 ? at::avg_pool2d : at::avg_pool3d;
      return {pool(x, kernel, stride, padding, ceil, include, divisor)};
    });
  }
}

TEST(Pool, OfSequences) {
  auto whole = at::randn({2, 3, 11}, at::kDouble);
  compare("max", whole, [](const at::Tensor& x) -> Results { return {at::max_pool1d(x, {3}, {2}, {1})}; });
  compare("avg", whole, [](const at::Tensor& x) -> Results { return {at::avg_pool1d(x, {3}, {2}, {1}, true)}; });
  Simulation world(2);
  auto x = distribute_tensor(whole, init_device_mesh(at::kCPU, {2}), {Shard(2)});
  EXPECT_EQ(difference(full_tensor(at::max_pool1d(x, {3})), at::max_pool1d(whole, {3})), "");  // needs no gradient
}

TEST(Pool, ByANorm) {
  compare("lp_pool1d", random_image({11}),
          [](const at::Tensor& x) -> Results { return {F::lp_pool1d(x, F::LPPool1dFuncOptions(3, 3).stride(2))}; });
  compare("lp_pool2d", random_image({7, 10}), [](const at::Tensor& x) -> Results {
    return {F::lp_pool2d(x, F::LPPool2dFuncOptions(2, {3, 2}).stride(2))};
  });
  compare("lp_pool3d", random_image({5, 4, 6}), [](const at::Tensor& x) -> Results {
    return {F::lp_pool3d(x, F::LPPool3dFuncOptions(4, {2, 2, 3}).ceil_mode(true))};
  });
}

TEST(AdaptiveMaxPool, OfImagesCutAtRandom) {
  auto with_indices = [](auto pool, Ints size) {
    return [=](const at::Tensor& x) -> Results {
      auto [values, indices] = pool(x, size);
      return {values, indices};
    };
  };
  for (auto [from, to] : {std::pair<int64_t, int64_t>{7, 3}, {5, 5}, {3, 7}, {12, 1}, {13, 6}, {1, 2}}) {
    compare("1d", random_image({from}), with_indices(at::adaptive_max_pool1d, {to}));
    compare("2d", random_image({from, 8}), with_indices(at::adaptive_max_pool2d, {to, 3}));
    compare("3d", random_image({from, 8, 4}), with_indices(at::adaptive_max_pool3d, {to, 3, 2}));
  }
}

TEST(AdaptiveMaxPool, OfEqualAndMissingValuesPointsWhereThePlainOneDoes) {
  auto whole = at::randint(3, {2, 3, 13, 9}).to(at::kDouble);
  auto op = [](const at::Tensor& x) -> Results {
    return {std::get<1>(at::adaptive_max_pool2d(x.detach(), {5, 4})), x * 2};
  };
  compare("equal values", whole, op);
  whole.masked_fill_(at::rand_like(whole) < 0.1, std::nan(""));
  for_each_world({2, 4}, [&](int64_t n) {
    auto x = distribute_tensor(whole, init_device_mesh(at::kCPU, {n}), {Shard(2)});
    EXPECT_EQ(difference(full_tensor(op(x)[0]), op(whole)[0]), "");
  });
}

TEST(AdaptiveMaxPool, FetchesOnlyTheRowsUnderItsWindows) {
  Simulation world(4);
  auto mesh = init_device_mesh(at::kCPU, {4}, {"w"});
  auto x = distribute_tensor(at::randn({1, 1, 2, 16}), mesh, {Shard(3)});
  CommDebugMode comms;
  at::adaptive_max_pool2d(x, {2, 8});
  EXPECT_EQ(comms.text(), "");
  at::adaptive_max_pool2d(x, {2, 4});
  EXPECT_EQ(comms.text(), "");
  at::adaptive_max_pool2d(x, {1, 6});  // windows [0,3) [2,6) [5,8) [8,11) [10,14) [13,16); outputs 2, 2, 2, 0
  EXPECT_EQ(comms.text(), "halo w 32B\n");
}

TEST(Pool, OverlappingWindowsFetchOnlyTheRowsUnderThem) {
  Simulation world(4);
  auto mesh = init_device_mesh(at::kCPU, {4}, {"w"});
  auto x = distribute_tensor(at::randn({1, 1, 2, 16}), mesh, {Shard(3)});
  CommDebugMode comms;
  at::max_pool2d_with_indices(x, {2, 2}, {2, 2});
  EXPECT_EQ(comms.text(), "");
  at::avg_pool2d(x, {1, 3}, {1, 2});  // 7 outputs: 2, 2, 2, 1
  EXPECT_EQ(comms.text(), "halo w 8B\n");
}

}  // namespace
}  // namespace intarsia::images_pool_test
