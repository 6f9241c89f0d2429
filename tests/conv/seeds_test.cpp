// Training convolutions on cut images, volumes and sequences, as users do: plain torch::nn modules, distributed.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/nn/distribute_module.h"
#include "intarsia/tensor/dtensor.h"
#include "tests/support/dealer.h"
#include "tests/support/error_text.h"
#include "tests/support/world.h"

namespace intarsia {
namespace {

at::Tensor conv(const at::Tensor& x, const at::Tensor& w, int64_t stride, int64_t padding, int64_t groups = 1) {
  return at::convolution(x, w, {}, {stride, stride}, {padding, padding}, {1, 1}, false, {0, 0}, groups);
}

constexpr double kFloat = 1e-5, kDouble = 1e-11;  // relative

// |a - b| relative to the size of b.
double distance(const at::Tensor& a, const at::Tensor& b) {
  auto whole = (is_dtensor(a) ? full_tensor(a) : a).detach();
  return ((whole - b).abs().max() / (b.abs().max() + 1e-30)).item<double>();
}

template <class Module>
Module twin(const Module& module) {
  return std::dynamic_pointer_cast<typename Module::ContainedType>(module->clone());
}

// Trains `model` for a few steps on the input cut as `cut` says, beside its twin on one device.
template <class Module>
void train(Module model, std::vector<int64_t> input_shape, const Placements& cut, const DeviceMesh& mesh,
           at::ScalarType dtype, bool input_gradient = true) {
  auto tolerance = dtype == at::kFloat ? kFloat : kDouble;
  model->to(dtype);
  auto plain = twin(model);
  distribute_module(*model, mesh);
  torch::optim::SGD optimizer(model->parameters(), 0.01), plain_optimizer(plain->parameters(), 0.01);
  for (int step = 0; step < 3; ++step) {
    auto whole = at::randn(input_shape, dtype);
    auto x = distribute_tensor(whole, mesh, cut).requires_grad_(input_gradient);
    auto y = whole.clone().requires_grad_(input_gradient);
    optimizer.zero_grad(), plain_optimizer.zero_grad();
    auto out = model->forward(x), expected = plain->forward(y);
    EXPECT_EQ(str(placements_of(out)), str(cut));
    EXPECT_LE(distance(out, expected.detach()), tolerance);
    auto grad = at::randn(expected.sizes(), dtype);
    out.backward(distribute_tensor(grad, mesh, cut));
    expected.backward(grad);
    EXPECT_EQ(x.grad().defined(), input_gradient);
    if (input_gradient) {
      EXPECT_LE(distance(x.grad(), y.grad()), tolerance) << "gradient of the input";
    }
    for (size_t i = 0; i < plain->parameters().size(); ++i) {
      EXPECT_LE(distance(model->parameters()[i].grad(), plain->parameters()[i].grad()), tolerance) << "parameter " << i;
    }
    optimizer.step(), plain_optimizer.step();
  }
  for (size_t i = 0; i < plain->parameters().size(); ++i) {
    EXPECT_LE(distance(model->parameters()[i], plain->parameters()[i]), tolerance);
  }
}

template <class Body>
void with_mesh(Body body) {
  at::manual_seed(5);
  for_each_world({2, 4}, [&](int64_t n) {
    for (auto dtype : {at::kFloat, at::kDouble}) body(init_device_mesh(at::kCPU, {n}), dtype);
  });
}

TEST(TrainConvolution, DownsamplingCutAlongTheWidth) {
  with_mesh([](auto mesh, auto dtype) {
    torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 256, 4).stride(4));
    train(conv, {2, 3, 16, 32}, {Shard(3)}, mesh, dtype);
  });
}

TEST(TrainConvolution, DepthwiseCutAlongTheWidth) {
  with_mesh([](auto mesh, auto dtype) {
    torch::nn::Conv2d conv(torch::nn::Conv2dOptions(256, 256, 7).padding(3).groups(256));
    train(conv, {1, 256, 8, 16}, {Shard(3)}, mesh, dtype);
  });
}

TEST(TrainConvolution, SequencesVolumesAndTransposed) {
  with_mesh([](auto mesh, auto dtype) {
    train(torch::nn::Conv1d(torch::nn::Conv1dOptions(8, 8, 3).padding(1)), {1, 8, 9}, {Shard(2)}, mesh, dtype);
    train(torch::nn::Conv3d(torch::nn::Conv3dOptions(4, 4, 3).padding(1)), {1, 4, 5, 6, 7}, {Shard(3)}, mesh, dtype);
    train(torch::nn::Conv3d(torch::nn::Conv3dOptions(4, 4, 3).padding(1)), {3, 4, 5, 6, 7}, {Shard(0)}, mesh, dtype);
  });
}

TEST(TrainConvolution, StringPaddingModes) {
  with_mesh([](auto mesh, auto dtype) {
    train(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3).padding(torch::kSame).dilation(2)), {1, 2, 9, 7}, {Shard(2)},
          mesh, dtype);
    train(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3).padding(torch::kValid)), {1, 2, 9, 7}, {Shard(3)}, mesh, dtype);
  });
}

TEST(TrainConvolution, AnInputThatNeedsNoGradientGetsNone) {
  with_mesh([](auto mesh, auto dtype) {
    train(torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3).padding(1)), {1, 4, 6, 6}, {Replicate()}, mesh, dtype, false);
    train(torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3).padding(1)), {1, 4, 6, 6}, {Shard(2)}, mesh, dtype, false);
  });
}

TEST(Convolution, HasASecondDerivative) {
  with_mesh([](auto mesh, auto) {
    auto run = [](const at::Tensor& x, const at::Tensor& w) {
      auto first = torch::autograd::grad({conv(x, w, 2, 1).pow(3).sum()}, {x, w}, {}, true, true);
      return torch::autograd::grad({first[0].pow(2).sum() + first[1].pow(2).sum()}, {x, w});
    };
    auto x = at::randn({2, 3, 7, 6}, at::kDouble), w = at::randn({4, 3, 3, 2}, at::kDouble);
    auto expected = run(x.clone().requires_grad_(), w.clone().requires_grad_());
    auto actual = run(distribute_tensor(x, mesh, {Shard(2)}).requires_grad_(),
                      distribute_tensor(w, mesh, {Replicate()}).requires_grad_());
    EXPECT_LE(distance(actual[0], expected[0]), kDouble);
    EXPECT_LE(distance(actual[1], expected[1]), kDouble);
  });
}

TEST(Convolution, WrongArgumentsReadAsThePlainOpsOnEveryRank) {
  with_mesh([](auto mesh, auto) {
    auto compare = [&](at::IntArrayRef input, at::IntArrayRef weight, int64_t groups) {
      auto x = at::zeros(input), w = at::zeros(weight);
      auto plain = error_text<c10::Error>([&] { conv(x, w, 1, 0, groups); });
      EXPECT_NE(plain, "no error");
      auto dx = distribute_tensor(x, mesh, {Shard(2)}), dw = distribute_tensor(w, mesh, {Replicate()});
      EXPECT_EQ(error_text<c10::Error>([&] { conv(dx, dw, 1, 0, groups); }), plain);
    };
    compare({1, 4, 8, 8}, {4, 3, 3, 3}, 1);  // channels
    compare({1, 4, 8, 8}, {4, 4, 9, 9}, 1);  // a kernel larger than the image
    compare({1, 4, 8, 8}, {4, 2, 3, 3}, 3);  // groups that do not divide
  });
}

}  // namespace
}  // namespace intarsia
