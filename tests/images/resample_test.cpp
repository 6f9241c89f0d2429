// Interpolation, padding and adaptive averages of cut images: values and gradients are those of the plain op.

#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/simulation/simulation.h"
#include "tests/images/cut_at_random.h"
#include "tests/support/error_text.h"

namespace intarsia::images_resample_test {
namespace {

namespace F = torch::nn::functional;
using Ints = std::vector<int64_t>;

void compare(const std::string& text, const at::Tensor& whole, const std::function<at::Tensor(const at::Tensor&)>& op) {
  compare_cut_at_random(text, whole, 2, true, [&](const at::Tensor& x) -> Results { return {op(x)}; });
}

at::Tensor image(Ints spatial, at::ScalarType dtype = at::kDouble) { return random_image(std::move(spatial), dtype); }

TEST(Resample, Nearest) {
  for (auto [from, to] : {std::pair<int64_t, int64_t>{5, 12}, {9, 4}, {7, 7}, {2, 3}}) {
    compare("nearest1d", image({from}), [=](auto& x) { return at::upsample_nearest1d(x, {to}); });
    compare("nearest2d", image({from, 6}), [=](auto& x) { return at::upsample_nearest2d(x, {to, 9}); });
    compare("exact1d", image({from}), [=](auto& x) { return at::_upsample_nearest_exact1d(x, {to}); });
    compare("exact3d", image({from, 4, 3}), [=](auto& x) { return at::_upsample_nearest_exact3d(x, {to, 3, 5}); });
    compare("exact2d", image({from, 6}), [=](auto& x) { return at::_upsample_nearest_exact2d(x, {to, 9}); });
    compare("nearest3d", image({from, 4, 3}), [=](auto& x) { return at::upsample_nearest3d(x, {to, 3, 5}); });
  }
}

TEST(Resample, LinearAndCubic) {
  for (bool align : {false, true}) {
    for (auto dtype : {at::kDouble, at::kFloat}) {
      for (auto [from, to] : {std::pair<int64_t, int64_t>{5, 12}, {9, 4}, {1, 3}}) {
        compare("linear", image({from}, dtype), [=](auto& x) { return at::upsample_linear1d(x, {to}, align); });
        compare("bilinear", image({from, 6}, dtype),
                [=](auto& x) { return at::upsample_bilinear2d(x, {to, 9}, align); });
        compare("bicubic", image({from, 6}, dtype), [=](auto& x) { return at::upsample_bicubic2d(x, {to, 9}, align); });
        compare("trilinear", image({from, 4, 3}, dtype),
                [=](auto& x) { return at::upsample_trilinear3d(x, {to, 3, 5}, align); });
      }
      compare("bilinear by factors", image({5, 6}, dtype),
              [=](auto& x) { return at::upsample_bilinear2d(x, {9, 15}, align, 1.9, 2.5); });
    }
  }
}

TEST(Resample, Antialiased) {
  for (bool align : {false, true}) {
    for (auto dtype : {at::kDouble, at::kFloat}) {
      for (auto [from, to] : {std::pair<int64_t, int64_t>{5, 12}, {19, 4}, {13, 6}, {2, 3}}) {
        compare("bilinear", image({from, 6}, dtype),
                [=](auto& x) { return at::_upsample_bilinear2d_aa(x, {to, 9}, align); });
        compare("bicubic", image({from, 16}, dtype),
                [=](auto& x) { return at::_upsample_bicubic2d_aa(x, {to, 3}, align); });
        compare("lanczos", image({from, 9}, dtype),
                [=](auto& x) { return at::_upsample_lanczos2d_aa(x, {to, 5}, align); });
      }
    }
  }
  compare("interpolate", image({12, 9}), [](auto& x) {
    auto options = F::InterpolateFuncOptions().scale_factor(std::vector<double>{0.4, 0.7}).mode(torch::kBilinear);
    return F::interpolate(x, options.align_corners(false).antialias(true));
  });
}

TEST(Pad, Circular) {
  compare("circular", image({6}), [](auto& x) { return at::_pad_circular(x, {3, 5}); });
  compare("circular", image({6, 5}), [](auto& x) { return at::_pad_circular(x, {5, 4, 0, 6}); });
  compare("circular", image({4, 5, 3}), [](auto& x) { return at::_pad_circular(x, {2, 1, 3, 0, 1, 3}); });
  compare("circular, cropping", image({6, 5}), [](auto& x) { return at::_pad_circular(x, {-1, 2, 3, -2}); });
  compare("circular", image({6, 5}),
          [](auto& x) { return F::pad(x, F::PadFuncOptions({1, 2, 3, 4}).mode(torch::kCircular)); });
}

TEST(Pad, CircularOfAStridedCut) {
  for_each_world({2, 4}, [](int64_t n) {
    auto whole = image({13}), grad = image({18});
    for (auto& shape : mesh_shapes(n)) {
      auto mesh = init_device_mesh(at::kCPU, shape);
      Placements cut(mesh.ndim(), Shard(2));
      cut[0] = StridedShard(2, 3);
      auto x = whole.clone().requires_grad_(), dx = lay_out(whole, mesh, cut).requires_grad_();
      auto expected = at::_pad_circular(x, {3, 2}), actual = at::_pad_circular(dx, {3, 2});
      EXPECT_EQ(difference(full_tensor(actual).detach(), expected.detach()), "");
      expected.backward(grad), actual.backward(lay_out(grad, mesh, placements_of(actual)));
      EXPECT_EQ(difference(full_tensor(dx.grad()), x.grad(), 1e-11), "");
    }
  });
}

TEST(Pad, CircularIsOneExchangeWithOnlyTheRowsThatMove) {
  Simulation world(4);
  auto x = distribute_tensor(at::randn({1, 1, 8}), init_device_mesh(at::kCPU, {4}, {"w"}), {Shard(2)});
  CommDebugMode comms;
  at::_pad_circular(x, {1, 1});  // 10 over 4 is 3, 3, 3, 1: rank 3 sends row 7 to rank 0, and rows 6 and 7 to rank 2
  EXPECT_EQ(comms.text(), "all_to_all w 12B\n");
  auto twice = error_text<c10::Error>([&] { at::_pad_circular(at::zeros({1, 1, 8}), {9, 0}); });
  EXPECT_EQ(error_text<c10::Error>([&] { at::_pad_circular(x, {9, 0}); }), twice);
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
  compare("adaptive", image({7}), [](auto& x) { return at::adaptive_avg_pool1d(x, {3}); });
  compare("adaptive", image({6, 5, 4}), [](auto& x) { return at::adaptive_avg_pool3d(x, {4, 3, 3}); });
}

TEST(Resample, AdaptiveAveragesOfInfinitiesAreInfinite) {
  auto whole = image({7, 5});
  whole[0][0][0][0] = std::numeric_limits<double>::infinity();
  compare("adaptive", whole, [](auto& x) { return at::adaptive_avg_pool2d(x, {3, 4}); });
}

TEST(Pad, WithAConstantAndCropping) {
  for (double value : {0., 1.5}) {
    for (Ints pads : {Ints{2, 3}, Ints{0, 0, 7, 1}, Ints{-1, 4, -2, -2}, Ints{1, 1, 0, 0, 2, 0, 1, 1}}) {
      compare(c10::str("pad ", pads), image({6, 5}), [=](auto& x) { return at::constant_pad_nd(x, pads, value); });
    }
  }
}

}  // namespace
}  // namespace intarsia::images_resample_test
