// Second derivatives of pools, padding, resampling and unfolding of cut images, where the plain op has them.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/policy.h"
#include "tests/images/cut_at_random.h"

namespace intarsia::images_second_derivative_test {
namespace {

namespace F = torch::nn::functional;
using Ints = std::vector<int64_t>;
using Op = std::function<at::Tensor(const at::Tensor&)>;

// The gradient of a function of the first gradient.
at::Tensor second_derivative(const Op& op, const at::Tensor& x) {
  auto leaf = x.detach().requires_grad_();
  auto first = torch::autograd::grad({op(leaf).pow(3).sum()}, {leaf}, {}, true, true)[0];
  return torch::autograd::grad({(first.pow(2) * leaf).sum()}, {leaf})[0];
}

// Cut along every dim, over lines and squares of ranks, into shards that are uneven or empty.
void compare(const std::string& text, const at::Tensor& whole, const Op& op) {
  StrictScope strict;
  auto expected = second_derivative(op, whole);
  ASSERT_GT(expected.abs().max().item<double>(), 0) << text;
  for_each_world({2, 4}, [&](int64_t n) {
    for (auto& shape : mesh_shapes(n)) {
      auto mesh = init_device_mesh(at::kCPU, shape);
      for (int64_t dim = 0; dim < whole.dim(); ++dim) {
        Placements cut = {Shard(dim)};
        if (mesh.ndim() == 2) cut.push_back(Shard(dim == 2 ? whole.dim() - 1 : 2));
        SCOPED_TRACE(text + c10::str(" of ", whole.sizes(), " ") + str(cut) + " on " + mesh.text());
        auto actual = second_derivative(op, distribute_tensor(whole, mesh, cut));
        EXPECT_EQ(difference(full_tensor(actual), expected, 1e-11), "");
      }
    }
  });
}

struct Case {
  const char* name;
  Ints image;
  Op op;
};

void compare(const std::vector<Case>& cases) {
  at::manual_seed(8);
  for (auto& c : cases) compare(c.name, random_image(c.image), c.op);
}

TEST(SecondDerivative, OfPools) {
  compare({
      {"max_pool1d", {11}, [](auto& x) { return at::max_pool1d(x, {3}, {2}, {1}); }},
      {"max_pool2d", {7, 9}, [](auto& x) { return at::max_pool2d(x, {3, 2}, {2, 2}, {1, 1}, {1, 1}, true); }},
      {"max_pool3d", {5, 6, 4}, [](auto& x) { return at::max_pool3d(x, {2, 3, 2}, {2, 1, 2}, {1, 1, 0}); }},
      {"avg_pool1d", {11}, [](auto& x) { return at::avg_pool1d(x, {3}, {2}, {1}, true); }},
      {"avg_pool2d", {7, 9}, [](auto& x) { return at::avg_pool2d(x, {3, 2}, {2, 1}, {1, 1}, true, false); }},
      {"avg_pool3d", {5, 6, 4}, [](auto& x) { return at::avg_pool3d(x, {2, 3, 2}, {2, 1, 2}, {1, 1, 0}); }},
      {"adaptive_avg_pool1d", {7}, [](auto& x) { return at::adaptive_avg_pool1d(x, {3}); }},
      {"adaptive_avg_pool2d", {7, 5}, [](auto& x) { return at::adaptive_avg_pool2d(x, {3, 4}); }},
      {"adaptive_avg_pool3d", {6, 5, 4}, [](auto& x) { return at::adaptive_avg_pool3d(x, {4, 3, 3}); }},
      {"adaptive_max_pool2d", {7, 5}, [](auto& x) { return std::get<0>(at::adaptive_max_pool2d(x, {3, 4})); }},
      {"adaptive_max_pool3d", {6, 5, 4}, [](auto& x) { return std::get<0>(at::adaptive_max_pool3d(x, {4, 3, 3})); }},
      {"lp_pool2d",
       {7, 10},
       [](auto& x) { return F::lp_pool2d(x.abs() + 1, F::LPPool2dFuncOptions(3, {3, 2}).stride(2)); }},
  });
}

TEST(SecondDerivative, OfPadding) {
  compare({
      {"constant_pad_nd", {6, 5}, [](auto& x) { return at::constant_pad_nd(x, {2, 3, -1, 4}, 1.5); }},
      {"reflection_pad1d", {6}, [](auto& x) { return at::reflection_pad1d(x, {3, 5}); }},
      {"reflection_pad2d", {6, 5}, [](auto& x) { return at::reflection_pad2d(x, {2, 4, 5, 0}); }},
      {"reflection_pad3d", {4, 5, 3}, [](auto& x) { return at::reflection_pad3d(x, {2, 1, 3, 0, 1, 3}); }},
      {"replication_pad1d", {6}, [](auto& x) { return at::replication_pad1d(x, {3, 9}); }},
      {"replication_pad2d", {6, 5}, [](auto& x) { return at::replication_pad2d(x, {2, 4, 5, 0}); }},
      {"replication_pad3d", {4, 5, 3}, [](auto& x) { return at::replication_pad3d(x, {2, 1, 3, 0, 1, 3}); }},
      {"circular", {6, 5}, [](auto& x) { return at::_pad_circular(x, {5, 4, 0, 6}); }},
  });
}

TEST(SecondDerivative, OfResampling) {
  compare({
      {"nearest1d", {5}, [](auto& x) { return at::upsample_nearest1d(x, {12}); }},
      {"nearest2d", {9, 6}, [](auto& x) { return at::upsample_nearest2d(x, {4, 9}); }},
      {"nearest3d", {5, 4, 3}, [](auto& x) { return at::upsample_nearest3d(x, {7, 3, 5}); }},
      {"exact1d", {5}, [](auto& x) { return at::_upsample_nearest_exact1d(x, {12}); }},
      {"exact2d", {9, 6}, [](auto& x) { return at::_upsample_nearest_exact2d(x, {4, 9}); }},
      {"exact3d", {5, 4, 3}, [](auto& x) { return at::_upsample_nearest_exact3d(x, {7, 3, 5}); }},
      {"linear1d", {5}, [](auto& x) { return at::upsample_linear1d(x, {12}, false); }},
      {"bilinear2d", {9, 6}, [](auto& x) { return at::upsample_bilinear2d(x, {4, 9}, true); }},
      {"bicubic2d", {5, 6}, [](auto& x) { return at::upsample_bicubic2d(x, {12, 9}, false); }},
      {"trilinear3d", {5, 4, 3}, [](auto& x) { return at::upsample_trilinear3d(x, {7, 3, 5}, false); }},
      {"bilinear2d_aa", {9, 6}, [](auto& x) { return at::_upsample_bilinear2d_aa(x, {4, 9}, false); }},
      {"bicubic2d_aa", {9, 6}, [](auto& x) { return at::_upsample_bicubic2d_aa(x, {4, 3}, false); }},
  });
}

TEST(SecondDerivative, OfUnfoldingAndUnpooling) {
  compare({
      {"unfold", {7, 6}, [](auto& x) { return at::im2col(x, {3, 2}, {1, 2}, {1, 1}, {2, 1}); }},
      {"fold",
       {7, 6},
       [](auto& x) {
         auto columns = at::im2col(x, {2, 2}, {1, 1}, {1, 1}, {1, 1});
         return at::col2im(columns.pow(2), {7, 6}, {2, 2}, {1, 1}, {1, 1}, {1, 1});
       }},
      {"max_unpool2d",
       {6, 8},
       [](auto& x) {
         auto [values, indices] = at::max_pool2d_with_indices(x, {2, 2});
         return at::max_unpool2d(values, indices, x.sizes().slice(2));
       }},
  });
}

}  // namespace
}  // namespace intarsia::images_second_derivative_test
