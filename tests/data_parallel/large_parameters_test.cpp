// Parameters that are large enough to travel straight from and into their places, with sizes that do not divide.

#include "intarsia/data_parallel/fully_shard.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/comm/simulation.h"
#include "intarsia/core/world.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia::data_parallel_large_parameters_test {
namespace {

torch::nn::Sequential wide() {
  torch::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Linear(301, 257), torch::nn::Tanh(), torch::nn::Linear(257, 259));
  model->to(at::kDouble);
  return model;
}

void train_and_compare() {
  auto n = current_world().size();
  auto mesh = init_device_mesh(at::kCPU, {n}, {"dp"});
  auto model = wide(), plain = wide();
  fully_shard(*model[0], mesh), fully_shard(*model[2], mesh);
  torch::optim::SGD own(model->parameters(), 0.1), goal(plain->parameters(), 0.1);
  for (int64_t step = 0; step < 3; ++step) {
    auto x = torch::sin(torch::arange(2 * n * 301, at::kDouble) * 0.37 + static_cast<double>(step)).view({2 * n, 301});
    own.zero_grad(), goal.zero_grad();
    model->forward(to_local(distribute_tensor(x, mesh, {Shard(0)}, std::nullopt)).detach()).square().mean().backward();
    plain->forward(x).square().mean().backward();
    own.step(), goal.step();
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(torch::allclose(full_tensor(model->parameters()[i].detach()), plain->parameters()[i], 1e-12, 1e-12)) << i;
  }
}

TEST(LargeParameters, TrainAsInOneProcess) {
  if (process_world()) return train_and_compare();
  for (int64_t n : {1, 2, 3, 4}) {
    auto world = simulate(n);
    train_and_compare();
  }
}

}  // namespace
}  // namespace intarsia::data_parallel_large_parameters_test
