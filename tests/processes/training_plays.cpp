#include "tests/processes/training_plays.h"

#include <csignal>
#include <cstdlib>
#include <string>

#include <torch/torch.h>

#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "intarsia/data_parallel/replicate/replicate.h"
#include "intarsia/intarsia.h"
#include "intarsia/job/init.h"

namespace intarsia {
namespace {

std::string variable(const char* name) {
  auto* text = std::getenv(name);
  TORCH_CHECK(text, "set ", name);
  return text;
}

struct Strike {
  std::string where = variable("INTARSIA_STRIKE");
  int64_t step = std::stoll(variable("INTARSIA_STRIKE_STEP"));
  void at(const char* place, int64_t now) const {
    if (rank() == 1 && where == place && step == now) raise(SIGKILL);
  }
};

torch::nn::Sequential layers() {
  torch::manual_seed(1);
  torch::nn::Sequential model;
  for (int i = 0; i < 4; ++i) model->push_back(torch::nn::Linear(64, 64));
  return model;
}

void train(torch::nn::Sequential model) {
  Strike strike;
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  for (int64_t step = 0; step < 1000; ++step) {
    auto x = torch::ones({2, 64});
    for (size_t i = 0; i < model->size(); ++i) {
      if (i == 2) strike.at("forward", step);
      x = model[i]->as<torch::nn::Linear>()->forward(x);
      if (i == 1) x.register_hook([&, step](const at::Tensor&) { strike.at("backward", step); });
    }
    x.square().mean().backward();
    strike.at("optimizer", step);
    optimizer.step();
    optimizer.zero_grad();
  }
}

}  // namespace

void play_replicated_training() {
  init();
  auto model = layers();
  ReplicateOptions options;
  options.bucket_cap_mb = 0.01;
  replicate(*model, init_device_mesh(at::kCPU, {world_size()}, {"dp"}), options);
  train(model);
}

void play_sharded_training() {
  init();
  auto model = layers();
  auto mesh = init_device_mesh(at::kCPU, {world_size()}, {"dp"});
  for (auto& layer : model->children()) fully_shard(*layer, mesh);
  train(model);
}

}  // namespace intarsia
