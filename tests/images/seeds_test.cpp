// Training convolutions on cut images, volumes and sequences, as users do: plain torch::nn modules, distributed.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/job/init.h"
#include "intarsia/nn/distribute_module.h"
#include "intarsia/tensor/dtensor.h"
#include "tests/support/world.h"

namespace intarsia::images_seeds_test {
namespace {

constexpr double kFloat = 1e-5, kDouble = 1e-11;  // relative

// The plain side of a comparison is computed once, by the first rank, which deals out what the others are to have.
// Elsewhere its tensors have a shape, and memory that nobody touches.
bool first() { return !process_world() || rank() == 0; }

at::Tensor from_first(const at::Tensor& tensor, const at::Tensor& like) {
  return first() ? tensor.detach() : at::empty(like.sizes(), like.options().device(at::kCPU));
}

at::Tensor random(at::IntArrayRef shape, at::ScalarType dtype) {
  return first() ? at::randn(shape, dtype) : at::empty(shape, dtype);
}

// |a - b| relative to the size of b, which the first rank has. Of a cut tensor each rank looks at what it holds.
double distance(const at::Tensor& a, const at::Tensor& b) {
  auto mesh = mesh_of(a);
  auto settled = redistribute(a.detach(), intarsia::settled(placements_of(a)));
  EXPECT_TRUE(!first() || a.sizes() == b.sizes()) << a.sizes() << " " << b.sizes();
  auto whole = from_first(b, a);
  auto expected = distribute_tensor(whole, mesh, placements_of(settled));
  auto size = first() ? at::max(whole.max(), -whole.min()).reshape({1}) : at::empty({1}, whole.options());
  size = full_tensor(distribute_tensor(size, mesh, Placements(mesh.ndim(), Replicate())));
  double most = 0;
  for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
    auto &actual = shards_of(settled)[slot], &wanted = shards_of(expected)[slot];
    EXPECT_EQ(actual.sizes(), wanted.sizes());
    if (actual.numel()) most = std::max(most, (actual - wanted).abs_().max().item<double>());
  }
  return most / (size.item<double>() + 1e-30);
}

template <class Module>
Module twin(const Module& module) {
  return std::dynamic_pointer_cast<typename Module::ContainedType>(module->clone());
}

// The sizes of the real thing take minutes and gigabytes: `make nightly` asks for them, else they are scaled down.
bool full_size() {
  const char* asked = std::getenv("INTARSIA_FULL_SIZE");
  return asked && std::string(asked) == "1";
}

std::vector<int64_t> sized(std::vector<int64_t> full, std::vector<int64_t> small) { return full_size() ? full : small; }

// Trains `model` for a few steps on the input cut as `cut` says, beside its twin on one device.
template <class Module>
void train(Module model, std::vector<int64_t> input_shape, const Placements& cut, const DeviceMesh& mesh,
           at::ScalarType dtype, bool input_gradient = true, const PartitionFn& partition = nullptr) {
  auto tolerance = dtype == at::kFloat ? kFloat : kDouble;
  model->to(dtype);
  auto plain = twin(model);
  distribute_module(*model, mesh, partition);
  torch::optim::SGD optimizer(model->parameters(), 0.01), plain_optimizer(plain->parameters(), 0.01);
  int steps =
      full_size() && dtype == at::kDouble ? 1 : 3;  // LibTorch's depthwise convolution takes half a minute in double
  for (int step = 0; step < steps; ++step) {
    auto y = random(input_shape, dtype).requires_grad_(input_gradient);
    auto x = distribute_tensor(y.detach(), mesh, cut).requires_grad_(input_gradient);
    optimizer.zero_grad(), plain_optimizer.zero_grad();
    auto out = model->forward(x), expected = first() ? plain->forward(y) : at::Tensor();
    EXPECT_EQ(str(placements_of(out)), str(cut));
    EXPECT_LE(distance(out, expected), tolerance);
    auto grad = random(out.sizes(), dtype);
    out.backward(distribute_tensor(grad, mesh, cut));
    if (first()) expected.backward(grad);
    out.reset(), expected.reset(), grad.reset();
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
    train(conv, sized({7, 3, 512, 1024}, {2, 3, 16, 32}), {Shard(3)}, mesh, dtype);
  });
}

TEST(TrainConvolution, DepthwiseCutAlongTheWidth) {
  with_mesh([](auto mesh, auto dtype) {
    torch::nn::Conv2d conv(torch::nn::Conv2dOptions(256, 256, 7).padding(3).groups(256));
    train(conv, sized({7, 256, 128, 256}, {1, 256, 8, 16}), {Shard(3)}, mesh, dtype);
  });
}

TEST(TrainConvolution, SequencesVolumesAndTransposed) {
  with_mesh([](auto mesh, auto dtype) {
    train(torch::nn::Conv1d(torch::nn::Conv1dOptions(64, 64, 3).padding(1)), {1, 64, 8}, {Shard(2)}, mesh, dtype);
    train(torch::nn::Conv1d(torch::nn::Conv1dOptions(8, 8, 3).padding(1)), {1, 8, 9}, {Shard(2)}, mesh, dtype);
    train(torch::nn::Conv3d(torch::nn::Conv3dOptions(64, 64, 3).padding(1)), sized({1, 64, 8, 8, 8}, {1, 64, 4, 4, 8}),
          {Shard(4)}, mesh, dtype);
    train(torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(4, 5, 4).stride(3).padding(1).output_padding(2)),
          {1, 4, 7, 6}, {Shard(2)}, mesh, dtype);
    train(torch::nn::Conv3d(torch::nn::Conv3dOptions(4, 4, 3).padding(1)), {1, 4, 5, 6, 7}, {Shard(3)}, mesh, dtype);
    train(torch::nn::Conv3d(torch::nn::Conv3dOptions(4, 4, 3).padding(1)), {3, 4, 5, 6, 7}, {Shard(0)}, mesh, dtype);
  });
}

TEST(TrainConvolution, DistributedByAFunctionThatReplicatesTheParameters) {
  auto replicate = [](const std::string&, torch::nn::Module& module, const DeviceMesh& mesh) {
    for (auto& parameter : module.named_parameters(false))
      distribute_parameter(module, parameter.key(), mesh, {Replicate()});
  };
  with_mesh([&](auto mesh, auto dtype) {
    train(torch::nn::Conv1d(torch::nn::Conv1dOptions(4, 6, 3).padding(1)), {2, 4, 9}, {Shard(2)}, mesh, dtype, true,
          replicate);
    train(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 4).stride(4)), {2, 3, 16, 32}, {Shard(3)}, mesh, dtype, true,
          replicate);
    train(torch::nn::Conv3d(torch::nn::Conv3dOptions(4, 4, 3).padding(1)), {1, 4, 5, 6, 7}, {Shard(4)}, mesh, dtype,
          true, replicate);
    train(torch::nn::ConvTranspose1d(torch::nn::ConvTranspose1dOptions(4, 6, 3).stride(2)), {2, 4, 9}, {Shard(2)}, mesh,
          dtype, true, replicate);
    train(torch::nn::ConvTranspose3d(torch::nn::ConvTranspose3dOptions(4, 2, 3).stride(2)), {1, 4, 3, 4, 5}, {Shard(2)},
          mesh, dtype, true, replicate);
  });
}

TEST(TrainConvolution, StringPaddingModes) {
  with_mesh([](auto mesh, auto dtype) {
    train(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3).padding(torch::kSame).dilation(2)), {1, 2, 9, 7},
          {Shard(2)}, mesh, dtype);
    train(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3).padding(torch::kValid)), {1, 2, 9, 7}, {Shard(3)}, mesh,
          dtype);
  });
}

TEST(TrainConvolution, AnInputThatNeedsNoGradientGetsNone) {
  with_mesh([](auto mesh, auto dtype) {
    train(torch::nn::Conv2d(torch::nn::Conv2dOptions(64, 64, 3).padding(1)), sized({1, 64, 32, 32}, {1, 64, 8, 8}),
          {Replicate()}, mesh, dtype, false);
    train(torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3).padding(1)), {1, 4, 6, 6}, {Shard(2)}, mesh, dtype,
          false);
  });
}

// The gradients of a function of the first gradients.
std::vector<at::Tensor> second_derivatives(const std::function<at::Tensor(const std::vector<at::Tensor>&)>& op,
                                           const std::vector<at::Tensor>& leaves) {
  auto first = torch::autograd::grad({op(leaves).pow(3).sum()}, leaves, {}, true, true);
  auto sum = first[0].pow(2).sum();
  for (size_t i = 1; i < first.size(); ++i) sum = sum + first[i].pow(2).sum();
  return torch::autograd::grad({sum}, leaves);
}

TEST(Convolution, HasASecondDerivative) {
  struct Form {
    std::vector<int64_t> input, weight;
    int64_t stride, padding, dilation, groups;
    bool transposed;
  };
  auto cut_and_compare = [](const Form& f, const DeviceMesh& mesh, const Placements& cut) {
    SCOPED_TRACE(
        c10::str(f.input, f.weight, " stride ", f.stride, " groups ", f.groups, f.transposed ? " transposed " : " ") +
        str(cut));
    auto n = f.input.size() - 2;
    std::vector<int64_t> stride(n, f.stride), padding(n, f.padding), dilation(n, f.dilation), none(n, 0);
    auto op = [&](const std::vector<at::Tensor>& t) {
      return at::convolution(t[0], t[1], t[2], stride, padding, dilation, f.transposed, none, f.groups);
    };
    auto outputs = f.transposed ? f.weight[1] * f.groups : f.weight[0];
    std::vector<at::Tensor> whole = {at::randn(f.input, at::kDouble), at::randn(f.weight, at::kDouble),
                                     at::randn({outputs}, at::kDouble)};
    std::vector<at::Tensor> plain, distributed;
    for (auto& tensor : whole) {
      plain.push_back(tensor.clone().requires_grad_());
      auto placements = distributed.empty() ? cut : Placements(mesh.ndim(), Replicate());
      distributed.push_back(distribute_tensor(tensor, mesh, placements).requires_grad_());
    }
    auto expected = second_derivatives(op, plain), actual = second_derivatives(op, distributed);
    for (size_t i = 0; i < 3; ++i) EXPECT_LE(distance(actual[i], expected[i]), kDouble) << "of tensor " << i;
  };
  at::manual_seed(5);
  for_each_world({2, 4}, [&](int64_t n) {
    auto line = init_device_mesh(at::kCPU, {n});
    for (auto& f :
         {Form{{2, 3, 7, 6}, {4, 3, 3, 2}, 2, 1, 1, 1, false}, Form{{1, 4, 6, 9}, {4, 2, 2, 3}, 1, 2, 2, 2, false},
          Form{{1, 4, 5, 4}, {4, 1, 3, 3}, 2, 1, 1, 4, true}, Form{{2, 2, 5, 4}, {2, 3, 2, 3}, 1, 0, 2, 1, true}}) {
      for (int64_t dim : {0, 2, 3}) cut_and_compare(f, line, {Shard(dim)});
      if (n == 4) cut_and_compare(f, init_device_mesh(at::kCPU, {2, 2}), {Shard(2), Shard(3)});
    }
    cut_and_compare({{1, 2, 9}, {3, 2, 4}, 1, 1, 1, 1, false}, line, {Shard(2)});
    cut_and_compare({{1, 2, 4, 5, 6}, {3, 2, 2, 3, 2}, 2, 1, 1, 1, false}, line, {Shard(3)});
  });
}

}  // namespace
}  // namespace intarsia::images_seeds_test
