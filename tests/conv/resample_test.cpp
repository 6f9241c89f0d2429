// Interpolation, padding and adaptive averages of cut images: values and gradients are those of the plain op.

#include <random>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/tensor/dtensor.h"
#include "tests/support/dealer.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia {
namespace {

using Ints = std::vector<int64_t>;
using Op = std::function<at::Tensor(const at::Tensor&)>;

// On images cut at random, in worlds of several sizes.
void compare(const std::string& text, const at::Tensor& whole, const Op& op) {
  static auto* engine = new std::mt19937_64(11);
  for_each_world({2, 3, 4}, [&](int64_t n) {
    for (auto& shape : mesh_shapes(n)) {
      auto mesh = init_device_mesh(at::kCPU, shape);
      Placements cut;
      for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
        cut.push_back(Shard(std::uniform_int_distribution<int64_t>((*engine)() % 4 ? 2 : 0, whole.dim() - 1)(*engine)));
      }
      SCOPED_TRACE(text + c10::str(" of ", whole.sizes(), " ") + str(cut) + " on " + mesh.text());
      auto tolerance = whole.scalar_type() == at::kFloat ? 1e-5 : 1e-11;
      auto x = whole.clone().requires_grad_(), dx = lay_out(whole, mesh, cut).requires_grad_();
      auto expected = op(x), actual = op(dx);
      ASSERT_EQ(difference(full_tensor(actual).detach(), expected.detach(), tolerance), "");
      EXPECT_EQ(str(placements_of(actual)), str(cut));
      auto grad = at::randn(expected.sizes(), expected.options());
      expected.backward(grad);
      actual.backward(lay_out(grad, mesh, cut));
      ASSERT_EQ(difference(full_tensor(dx.grad()), x.grad(), tolerance), "") << "gradient";
    }
  });
}

at::Tensor image(Ints spatial, at::ScalarType dtype = at::kDouble) {
  Ints size = {2, 3};
  size.insert(size.end(), spatial.begin(), spatial.end());
  return at::randn(size, dtype);
}

TEST(Resample, Nearest) {
  for (auto [from, to] : {std::pair<int64_t, int64_t>{5, 12}, {9, 4}, {7, 7}, {2, 3}}) {
    compare("nearest1d", image({from}), [=](auto& x) { return at::upsample_nearest1d(x, {to}); });
    compare("nearest2d", image({from, 6}), [=](auto& x) { return at::upsample_nearest2d(x, {to, 9}); });
    compare("exact2d", image({from, 6}), [=](auto& x) { return at::_upsample_nearest_exact2d(x, {to, 9}); });
    compare("nearest3d", image({from, 4, 3}), [=](auto& x) { return at::upsample_nearest3d(x, {to, 3, 5}); });
  }
}

TEST(Resample, LinearAndCubic) {
  for (bool align : {false, true}) {
    for (auto dtype : {at::kDouble, at::kFloat}) {
      for (auto [from, to] : {std::pair<int64_t, int64_t>{5, 12}, {9, 4}, {1, 3}}) {
        compare("linear", image({from}, dtype), [=](auto& x) { return at::upsample_linear1d(x, {to}, align); });
        compare("bilinear", image({from, 6}, dtype), [=](auto& x) { return at::upsample_bilinear2d(x, {to, 9}, align); });
        compare("bicubic", image({from, 6}, dtype), [=](auto& x) { return at::upsample_bicubic2d(x, {to, 9}, align); });
        compare("trilinear", image({from, 4, 3}, dtype),
                [=](auto& x) { return at::upsample_trilinear3d(x, {to, 3, 5}, align); });
      }
      compare("bilinear by factors", image({5, 6}, dtype),
              [=](auto& x) { return at::upsample_bilinear2d(x, {9, 15}, align, 1.9, 2.5); });
    }
  }
}

TEST(Resample, PaddingByOwnRows) {
  compare("reflect", image({6}), [](auto& x) { return at::reflection_pad1d(x, {3, 5}); });
  compare("reflect", image({6, 5}), [](auto& x) { return at::reflection_pad2d(x, {2, 4, 5, 0}); });
  compare("reflect", image({4, 5, 3}), [](auto& x) { return at::reflection_pad3d(x, {2, 1, 3, 0, 1, 3}); });
  compare("replicate", image({6}), [](auto& x) { return at::replication_pad1d(x, {3, 9}); });
  compare("replicate", image({6, 5}), [](auto& x) { return at::replication_pad2d(x, {2, 4, 5, 0}); });
  compare("replicate", image({4, 5, 3}), [](auto& x) { return at::replication_pad3d(x, {2, 1, 3, 0, 1, 3}); });
}

TEST(Resample, AdaptiveAverages) {
  compare("adaptive", image({7, 5}), [](auto& x) { return at::adaptive_avg_pool2d(x, {3, 4}); });
  compare("adaptive", image({3, 5}), [](auto& x) { return at::adaptive_avg_pool2d(x, {7, 2}); });
  compare("adaptive", image({6, 5, 4}), [](auto& x) { return at::adaptive_avg_pool3d(x, {4, 3, 3}); });
}

TEST(Pad, WithAConstantAndCropping) {
  for (double value : {0., 1.5}) {
    for (Ints pads : {Ints{2, 3}, Ints{0, 0, 7, 1}, Ints{-1, 4, -2, -2}, Ints{1, 1, 0, 0, 2, 0, 1, 1}}) {
      compare(c10::str("pad ", pads), image({6, 5}), [=](auto& x) { return at::constant_pad_nd(x, pads, value); });
    }
  }
}

}  // namespace
}  // namespace intarsia
