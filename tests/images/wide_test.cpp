// Convolutions of images whose shards are much wider than the window: they are convolved where they lie, and only the
// outputs at the borders see copies.

#include <random>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/tensor/dtensor.h"
#include "tests/support/dealer.h"
#include "tests/support/lay_out.h"
#include "tests/support/peak_memory.h"
#include "tests/support/world.h"

namespace intarsia::images_wide_test {
namespace {

using Ints = std::vector<int64_t>;

struct Form {
  Ints input, weight, stride, padding, dilation;
  int64_t groups;

  at::Tensor run(const std::vector<at::Tensor>& t) const {
    return at::convolution(t[0], t[1], t[2], stride, padding, dilation, false, Ints(stride.size(), 0), groups);
  }
  std::string text() const {
    return c10::str("input ", input, " weight ", weight, " stride ", stride, " padding ", padding, " dilation ",
                    dilation, " groups ", groups);
  }
};

// Values and gradients of those tensors that `wanted` has a bit for.
void compare(const Form& f, const DeviceMesh& mesh, const Placements& cut, int64_t wanted) {
  SCOPED_TRACE(f.text() + " " + str(cut) + " on " + mesh.text() + c10::str(" wanted ", wanted));
  std::vector<at::Tensor> plain, distributed, leaves, distributed_leaves;
  for (auto& shape : {f.input, f.weight, Ints{f.weight[0]}}) {
    auto bit = plain.size();
    auto whole = at::randn(shape, at::kDouble);
    auto placements = bit ? Placements(mesh.ndim(), Replicate()) : cut;
    plain.push_back(whole), distributed.push_back(lay_out(whole, mesh, placements));
    if (!(wanted >> bit & 1)) continue;
    leaves.push_back(plain.back().requires_grad_()), distributed_leaves.push_back(distributed.back().requires_grad_());
  }
  auto expected = f.run(plain), actual = f.run(distributed);
  EXPECT_EQ(str(placements_of(actual)), str(cut));
  ASSERT_EQ(difference(full_tensor(actual).detach(), expected.detach(), 1e-11), "");
  auto grad = at::randn(expected.sizes(), at::kDouble);
  auto expected_grads = torch::autograd::grad({expected}, leaves, {grad});
  auto grads = torch::autograd::grad({actual}, distributed_leaves, {lay_out(grad, mesh, cut)});
  for (size_t i = 0; i < grads.size(); ++i) {
    ASSERT_EQ(difference(full_tensor(grads[i]), expected_grads[i], 1e-11), "") << "gradient " << i;
  }
}

TEST(WideConvolution, OfRandomFormIsThePlainOne) {
  std::mt19937_64 engine(3);
  at::manual_seed(3);
  auto dice = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine); };
  for (int trial = 0; trial < 40; ++trial) {
    for_each_world({2, 3, 4}, [&](int64_t n) {
      if (testing::Test::HasFatalFailure()) return;
      int64_t groups = dice(0, 2) ? 1 : 2, spatial = dice(1, 3);
      const Ints beside = {0, 400, 22};  // so that a shard has 32,768 elements and more
      Form f{{1, 2 * groups}, {2 * groups, 2}, {}, {}, {}, groups};
      auto cut = dice(0, spatial - 1);
      for (int64_t d = 0; d < spatial; ++d) {
        auto kernel = d == cut ? dice(1, 5) : dice(1, 2), dilation = dice(1, 2);
        auto reach = (kernel - 1) * dilation + 1;
        f.weight.push_back(kernel), f.dilation.push_back(dilation), f.stride.push_back(dice(1, 2));
        f.padding.push_back(dice(0, 1) ? reach / 2 : dice(0, reach));
        auto rows = spatial == 1 ? 20000 : dice(40, 90);
        f.input.push_back(d == cut ? n * rows + dice(-3, 3) : beside[spatial - 1] + dice(0, 3));
      }
      compare(f, init_device_mesh(at::kCPU, {n}), {Shard(cut + 2)}, trial % 3 ? 7 : 1 << dice(0, 1));
    });
  }
}

// Two ranks, one after the other: beside what the plain op takes on one half there are the results of the other.
TEST(WideConvolution, CopiesNothingAsLargeAsTheImage) {
  Simulation world(2);
  auto mesh = init_device_mesh(at::kCPU, {2});
  auto whole = at::randn({1, 8, 64, 1024}), weight = at::randn({8, 8, 3, 3});
  auto half = whole.slice(3, 0, 512).contiguous();
  auto x = distribute_tensor(whole, mesh, {Shard(3)}), w = distribute_tensor(weight, mesh, {Replicate()});
  auto allowed = static_cast<int64_t>(half.nbytes()) * 5 / 4;
  auto forward = [](const at::Tensor& x, const at::Tensor& w) { at::conv2d(x, w, {}, 1, 1); };
  auto backward = [](const at::Tensor& x, const at::Tensor& w) {
    at::convolution_backward(x, x, w, at::OptionalIntArrayRef(), {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1,
                             {true, true, false});
  };
  for (auto op : {+forward, +backward}) {
    op(x, w);  // what is kept from the first call is not its memory
    auto plain = peak_of([&] { op(half, weight); });
    EXPECT_LE(peak_of([&] { op(x, w); }), plain + allowed);
  }
}

}  // namespace
}  // namespace intarsia::images_wide_test
