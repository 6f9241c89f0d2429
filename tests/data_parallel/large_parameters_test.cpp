// Parameters that are large enough to travel straight from and into their places, with sizes that do not divide.

#include "intarsia/data_parallel/fully_shard/fully_shard.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/core/world.h"
#include "intarsia/data_parallel/replicate/replicate.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/simulation/simulation.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia::data_parallel_large_parameters_test {
namespace {

torch::nn::Sequential wide() {
  torch::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Linear(301, 257), torch::nn::Tanh(), torch::nn::Linear(257, 259));
  model->to(at::kDouble);
  return model;
}

using Model = torch::nn::Sequential;
using Wrap = std::function<void(Model&, const DeviceMesh&)>;

at::Tensor rows(int64_t step, int64_t n) {
  return torch::sin(torch::arange(2 * n * 301, at::kDouble) * 0.37 + static_cast<double>(step)).view({2 * n, 301});
}

at::Tensor rows_of_rank(const at::Tensor& x, const DeviceMesh& mesh) {
  return to_local(distribute_tensor(x, mesh, {Shard(0)}, std::nullopt)).detach();
}

void expect_same_parameters(const Model& model, const Model& plain) {
  for (size_t i = 0; i < 4; ++i) {
    auto value = model->parameters()[i].detach();
    EXPECT_TRUE(torch::allclose(is_dtensor(value) ? full_tensor(value) : value, plain->parameters()[i], 1e-12, 1e-12))
        << i;
  }
}

void train_and_compare(const Wrap& wrap, bool set_to_none) {
  auto n = current_world().size();
  auto mesh = init_device_mesh(at::kCPU, {n}, {"dp"});
  auto model = wide(), plain = wide();
  wrap(model, mesh);
  torch::optim::SGD own(model->parameters(), 0.1), goal(plain->parameters(), 0.1);
  for (int64_t step = 0; step < 4; ++step) {
    auto x = rows(step, n);
    own.zero_grad(set_to_none), goal.zero_grad(set_to_none);
    model->forward(rows_of_rank(x, mesh)).square().mean().backward();
    plain->forward(x).square().mean().backward();
    own.step(), goal.step();
  }
  expect_same_parameters(model, plain);
}

void in_worlds(const std::function<void()>& body) {
  if (process_world()) return body();
  for (int64_t n : {1, 2, 3, 4}) {
    auto world = simulate(n);
    body();
  }
}

TEST(LargeParameters, TrainAsInOneProcess) {
  in_worlds([] {
    auto shard = [](Model& model, auto& mesh) { fully_shard(*model[0], mesh), fully_shard(*model[2], mesh); };
    train_and_compare(shard, true);
  });
}

TEST(LargeParameters, OfReplicatedModulesTrainAsInOneProcess) {
  in_worlds([] {
    auto wrap = [](Model& model, auto& mesh) { replicate(*model, mesh); };
    for (bool set_to_none : {true, false}) train_and_compare(wrap, set_to_none);
  });
}

// Averages come into other memory than the gradients that are sent; who holds a gradient must not notice.
TEST(LargeParameters, AveragesReachGradientsThatAreHeldAndLeaveOldOnesAlone) {
  in_worlds([] {
    auto n = current_world().size();
    auto mesh = init_device_mesh(at::kCPU, {n}, {"dp"});
    auto model = wide(), plain = wide();
    replicate(*model, mesh);
    auto pass = [&](int64_t step) {
      model->forward(rows_of_rank(rows(step, n), mesh)).square().mean().backward();
      plain->forward(rows(step, n)).square().mean().backward();
    };
    auto own = [&] { return model->parameters()[0].grad(); };
    auto goal = [&] { return plain->parameters()[0].grad(); };
    pass(0);
    auto memory = own().detach(), before = own().clone();  // another handle on the gradient of the first step
    model->zero_grad(), plain->zero_grad();
    for (int64_t step = 1; step < 4; ++step) {
      auto held = own();
      pass(step);  // adds up
      EXPECT_TRUE(torch::allclose(own(), goal(), 1e-12, 1e-12));
      EXPECT_TRUE(!held.defined() || current_world().simulated() || torch::equal(held, own()));
    }
    EXPECT_TRUE(torch::equal(memory, before));
  });
}

}  // namespace
}  // namespace intarsia::data_parallel_large_parameters_test
