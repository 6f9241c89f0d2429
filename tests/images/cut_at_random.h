#pragma once
// Runs an op on images that are cut at random, on meshes of several shapes, and compares with the plain op.

#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/policy.h"
#include "tests/support/dealer.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia {

using Results = std::vector<at::Tensor>;
using ImageOp = std::function<Results(const at::Tensor&)>;

// Values of all results, and the gradient of the image from those results that have one. The dims from `first` on are
// those of the image, which are cut three times out of four. With `keeps_layout`, results must lie as the image does.
// No op may run on whole tensors.
inline void compare_cut_at_random(const std::string& text, const at::Tensor& whole, int64_t first, bool keeps_layout,
                                  const ImageOp& op) {
  static auto* engine = new std::mt19937_64(11);
  StrictScope strict;
  for_each_world({2, 3, 4}, [&](int64_t n) {
    for (auto& shape : mesh_shapes(n)) {
      if (testing::Test::HasFatalFailure()) return;
      auto mesh = init_device_mesh(at::kCPU, shape);
      Placements cut;
      for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
        cut.push_back(
            Shard(std::uniform_int_distribution<int64_t>((*engine)() % 4 ? first : 0, whole.dim() - 1)(*engine)));
      }
      SCOPED_TRACE(text + c10::str(" of ", whole.sizes(), " ") + str(cut) + " on " + mesh.text());
      auto tolerance = whole.scalar_type() == at::kFloat ? 1e-5 : 1e-11;
      auto x = whole.clone().requires_grad_(), dx = lay_out(whole, mesh, cut).requires_grad_();
      auto expected = op(x), actual = op(dx);
      std::vector<at::Tensor> roots, distributed_roots, grads, distributed_grads;
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(difference(full_tensor(actual[i]).detach(), expected[i].detach(), tolerance), "") << "result " << i;
        if (keeps_layout) {
          EXPECT_EQ(str(placements_of(actual[i])), str(cut));
        }
        if (!expected[i].requires_grad()) continue;
        auto grad = at::randn(expected[i].sizes(), expected[i].options());
        roots.push_back(expected[i]), grads.push_back(grad);
        distributed_roots.push_back(actual[i]);
        distributed_grads.push_back(lay_out(grad, mesh, placements_of(actual[i])));
      }
      torch::autograd::backward(roots, grads);
      torch::autograd::backward(distributed_roots, distributed_grads);
      ASSERT_EQ(difference(full_tensor(dx.grad()), x.grad(), tolerance), "") << "gradient";
    }
  });
}

// A random image of two samples and three channels.
inline at::Tensor random_image(std::vector<int64_t> extents, at::ScalarType dtype = at::kDouble) {
  extents.insert(extents.begin(), {2, 3});
  return at::randn(extents, dtype);
}

}  // namespace intarsia
