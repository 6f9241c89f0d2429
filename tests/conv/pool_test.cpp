// Pools of random form on images cut at random: values, indices and gradients are those of the plain op.

#include <random>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/comm/simulation.h"
#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/tensor/dtensor.h"
#include "tests/support/dealer.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia {
namespace {

using Ints = std::vector<int64_t>;
using Op = std::function<std::vector<at::Tensor>(const at::Tensor&)>;

// Runs an op on a tensor whose dims from `first` on are cut at random, and compares.
void compare(const Op& op, const at::Tensor& whole, int64_t first, std::mt19937_64& engine, const std::string& text) {
  for_each_world({2, 3, 4}, [&](int64_t n) {
    for (auto& shape : mesh_shapes(n)) {
      auto mesh = init_device_mesh(at::kCPU, shape);
      Placements cut;
      for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
        cut.push_back(Shard(std::uniform_int_distribution<int64_t>(engine() % 4 ? first : 0, whole.dim() - 1)(engine)));
      }
      SCOPED_TRACE(text + c10::str(" of ", whole.sizes(), " ") + str(cut) + " on " + mesh.text());
      auto x = whole.clone().requires_grad_(), dx = lay_out(whole, mesh, cut).requires_grad_();
      auto expected = op(x), actual = op(dx);
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(difference(full_tensor(actual[i]).detach(), expected[i].detach(), 1e-11), "") << "output " << i;
        EXPECT_EQ(str(placements_of(actual[i])), str(cut));
      }
      auto grad = at::randn(expected[0].sizes(), at::kDouble);
      expected[0].backward(grad);
      actual[0].backward(lay_out(grad, mesh, cut));
      ASSERT_EQ(difference(full_tensor(dx.grad()), x.grad(), 1e-11), "") << "gradient";
    }
  });
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
    auto text = c10::str("kernel ", kernel, " stride ", stride, " padding ", padding, " dilation ", dilation, " ceil ", ceil);
    auto whole = at::randn(size, at::kDouble);
    compare(
        [&](const at::Tensor& x) -> std::vector<at::Tensor> {
          auto pool = image == 2 ? at::max_pool2d_with_indices : at::max_pool3d_with_indices;
          auto [values, indices] = pool(x, kernel, stride, padding, dilation, ceil);
          return {values, indices};
        },
        whole, 2, engine, "max " + text);
    compare(
        [&](const at::Tensor& x) -> std::vector<at::Tensor> {
          auto pool = image == 2 ? at::avg_pool2d : at::avg_pool3d;
          return {pool(x, kernel, stride, padding, ceil, include, divisor)};
        },
        whole, 2, engine, "avg " + text);
  }
}

TEST(Pool, OfSequences) {
  std::mt19937_64 engine(8);
  auto whole = at::randn({2, 3, 11}, at::kDouble);
  compare([](const at::Tensor& x) -> std::vector<at::Tensor> { return {at::max_pool1d(x, {3}, {2}, {1})}; }, whole, 2,
          engine, "max_pool1d");
  compare([](const at::Tensor& x) -> std::vector<at::Tensor> { return {at::avg_pool1d(x, {3}, {2}, {1}, true)}; }, whole, 2,
          engine, "avg_pool1d");
  Simulation world(2);
  auto x = distribute_tensor(whole, init_device_mesh(at::kCPU, {2}), {Shard(2)});
  EXPECT_EQ(difference(full_tensor(at::max_pool1d(x, {3})), at::max_pool1d(whole, {3})), "");  // needs no gradient
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
}  // namespace intarsia
