// A convolution followed by batch norm in training, on cut images: the statistics are those of the whole image.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/nn/distribute_module.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/policy.h"
#include "tests/support/dealer.h"
#include "tests/support/peak_memory.h"
#include "tests/support/world.h"

namespace intarsia::images_norm_test {
namespace {

namespace nn = torch::nn;

// Without a bias: its gradient would be zero but for rounding.
nn::Sequential model() {
  at::manual_seed(3);
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 4, 3).padding(1).stride(2).bias(false)), nn::BatchNorm2d(4),
                     nn::ReLU(), nn::Conv2d(nn::Conv2dOptions(4, 5, 3).dilation(2).padding(2).bias(false)),
                     nn::BatchNorm2d(5));
  net->to(at::kDouble);
  return net;
}

// What every rank holds of a replicated tensor is what the plain one is.
void expect_everywhere(const at::Tensor& actual, const at::Tensor& expected, const std::string& name) {
  auto whole = redistribute(actual, Placements(mesh_of(actual).ndim(), Replicate()));
  for (auto& shard : shards_of(whole)) {
    EXPECT_EQ(difference(shard.detach(), expected.detach(), 1e-11), "") << name;
  }
}

void train_beside_plain(const DeviceMesh& mesh, const Placements& cut) {
  SCOPED_TRACE(str(cut) + " on " + mesh.text());
  StrictScope strict;
  auto plain = model(), net = model();
  distribute_module(*net, mesh);
  torch::optim::SGD optimizer(net->parameters(), 0.1), plain_optimizer(plain->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    auto whole = at::randn({2, 3, 10, 13}, at::kDouble);
    auto x = distribute_tensor(whole, mesh, cut).requires_grad_(), y = whole.clone().requires_grad_();
    optimizer.zero_grad(), plain_optimizer.zero_grad();
    auto out = net->forward(x), expected = plain->forward(y);
    EXPECT_EQ(str(placements_of(out)), str(cut));
    EXPECT_EQ(difference(full_tensor(out).detach(), expected.detach(), 1e-11), "");
    out.pow(3).mean().backward(), expected.pow(3).mean().backward();
    EXPECT_EQ(difference(full_tensor(x.grad()), y.grad(), 1e-10), "") << "gradient of the image";
    for (auto& parameter : plain->named_parameters()) {
      expect_everywhere(net->named_parameters()[parameter.key()].grad(), parameter->grad(), parameter.key() + ".grad");
    }
    optimizer.step(), plain_optimizer.step();
  }
  for (auto& buffer : plain->named_buffers())
    expect_everywhere(net->named_buffers()[buffer.key()], *buffer, buffer.key());
  net->eval(), plain->eval();
  auto whole = at::randn({2, 3, 10, 13}, at::kDouble);
  EXPECT_EQ(difference(full_tensor(net->forward(distribute_tensor(whole, mesh, cut))).detach(),
                       plain->forward(whole).detach(), 1e-11),
            "");
}

TEST(ConvolutionAndBatchNorm, TrainWithTheStatisticsOfTheWholeImage) {
  for_each_world({2, 4}, [](int64_t n) {
    auto line = init_device_mesh(at::kCPU, {n});
    for (int64_t dim : {0, 2, 3}) train_beside_plain(line, {Shard(dim)});
    if (n != 4) return;
    auto square = init_device_mesh(at::kCPU, {2, 2});
    train_beside_plain(square, {Shard(2), Shard(3)});
    train_beside_plain(square, {Shard(0), Shard(3)});
    train_beside_plain(square, {Shard(3), Shard(3)});
  });
}

// Two ranks, one after the other: beside what the plain op takes on one half there is the result of the other.
TEST(BatchNormOfACutImage, MakesNothingAsLargeAsTheImageButTheResult) {
  Simulation world(2);
  auto mesh = init_device_mesh(at::kCPU, {2});
  auto whole = at::randn({1, 8, 64, 1024}), half = whole.slice(3, 0, 512).contiguous(), stats = at::rand({8});
  auto x = distribute_tensor(whole, mesh, {Shard(3)}), per_channel = distribute_tensor(stats, mesh, {Replicate()});
  auto forward = [](const at::Tensor& x, const at::Tensor& w) {
    at::native_batch_norm(x, w, w, {}, {}, true, 0.1, 1e-5);
  };
  auto backward = [](const at::Tensor& x, const at::Tensor& w) {
    at::native_batch_norm_backward(x, x, w, {}, {}, w, w, true, 1e-5, {true, true, true});
  };
  for (auto op : {+forward, +backward}) {
    op(x, per_channel);
    auto plain = peak_of([&] { op(half, stats); });
    EXPECT_LE(peak_of([&] { op(x, per_channel); }), plain + static_cast<int64_t>(half.nbytes()) * 5 / 4);
  }
}

// The plain op's own sums are of the same kind: a mean far from zero costs both the same digits.
TEST(BatchNormOfACutImage, IsAsExactAsThePlainOneInFloat) {
  for_each_world({2, 3, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (double mean : {0., 30.}) {
      auto whole = at::randn({2, 3, 10, 13}) + mean, grad = at::randn({2, 3, 10, 13});
      auto x = distribute_tensor(whole, mesh, {Shard(3)}).requires_grad_(), y = whole.clone().requires_grad_();
      auto out = at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false);
      auto expected = at::batch_norm(y, {}, {}, {}, {}, true, 0.1, 1e-5, false);
      EXPECT_EQ(difference(full_tensor(out).detach(), expected.detach(), mean ? 1e-4 : 1e-5), "") << mean;
      out.backward(distribute_tensor(grad, mesh, {Shard(3)})), expected.backward(grad);
      EXPECT_EQ(difference(full_tensor(x.grad()), y.grad(), mean ? 1e-4 : 1e-5), "") << mean;
    }
  });
}

}  // namespace
}  // namespace intarsia::images_norm_test
