#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "intarsia/data_parallel/replicate/replicate.h"
#include "intarsia/intarsia.h"
#include "intarsia/simulation/simulation.h"

namespace intarsia::data_parallel_threads_test {
namespace {

// The random numbers of a process are those of all its threads, so there are none.
torch::nn::Sequential model() {
  torch::nn::Sequential layers(torch::nn::Linear(6, 5), torch::nn::Tanh(), torch::nn::Linear(5, 3));
  double step = 0.3;
  at::NoGradGuard no_grad;
  for (auto& parameter : layers->parameters()) {
    parameter.copy_((at::arange(parameter.numel()) * (step += 0.1)).sin().view(parameter.sizes()));
  }
  return layers;
}

at::Tensor weight_after(torch::nn::Sequential& layers, int steps) {
  torch::optim::SGD optimizer(layers->parameters(), 0.1);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    layers->forward((at::arange(12) * 0.1).view({2, 6})).square().mean().backward();
    optimizer.step();
  }
  auto weight = layers->parameters()[0].detach();
  return (is_dtensor(weight) ? full_tensor(weight) : weight).clone();
}

at::Tensor trained(bool sharded, int64_t ranks) {
  auto world = simulate(ranks);
  auto mesh = init_device_mesh(at::kCPU, {ranks}, {"dp"});
  auto layers = model();
  if (sharded) {
    for (auto& layer : layers->children()) {
      if (!layer->parameters().empty()) fully_shard(*layer, mesh);
    }
  } else {
    replicate(*layers, mesh, ReplicateOptions());
  }
  return weight_after(layers, 3);
}

TEST(DataParallelThreads, SimulationsOfDifferentThreadsShareNothing) {
  auto plain_model = model();
  auto expected = weight_after(plain_model, 3);
  std::vector<std::string> wrong(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 12 && wrong[t].empty(); ++round) {
        auto got = trained(round % 2, round % 3 == 2 ? 1 : 4);
        if (!at::allclose(got, expected)) wrong[t] = c10::str("round ", round, ": ", got, " instead of ", expected);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& text : wrong) EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace intarsia::data_parallel_threads_test
