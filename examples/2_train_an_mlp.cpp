// Trains a small MLP on a 2x2 mesh: the batch is cut over "dp", the layers over "tp". The model is plain torch::nn, the
// optimizer plain torch::optim; the same training on one rank runs beside it.
//
// Run it by itself, and this process plays all four ranks:
//   build/examples/2_train_an_mlp
// or as four processes:
//   intarsia run -n 4 build/examples/2_train_an_mlp
//
// It prints how the parameters lie on the mesh, the loss of every step beside the loss of the same step on one rank,
// and what was sent in the last step. It ends with an error if two losses differ by more than 1e-6.
#include <cmath>
#include <cstdio>
#include <iostream>
#include <optional>

#include <torch/torch.h>

#include "intarsia/intarsia.h"

using intarsia::DeviceMesh, intarsia::Replicate, intarsia::Shard;

namespace {

constexpr int kSteps = 10;
constexpr int64_t kBatch = 64, kIn = 16, kHidden = 32, kClasses = 4;

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    fc1 = register_module("fc1", torch::nn::Linear(kIn, kHidden));
    fc2 = register_module("fc2", torch::nn::Linear(kHidden, kClasses));
  }
  torch::Tensor forward(const torch::Tensor& x) { return fc2(torch::relu(fc1(x))); }
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(Mlp);

// fc1 makes a part of the hidden units on each rank of "tp"; fc2 takes that part, and leaves a sum over "tp".
void split_over_tp(const std::string& name, torch::nn::Module& module, const DeviceMesh& mesh) {
  if (name == "fc1") {
    intarsia::distribute_parameter(module, "weight", mesh, {Replicate(), Shard(0)});
    intarsia::distribute_parameter(module, "bias", mesh, {Replicate(), Shard(0)});
  } else if (name == "fc2") {
    intarsia::distribute_parameter(module, "weight", mesh, {Replicate(), Shard(1)});
  }
}

// Ordinary LibTorch code: it does not know whether its tensors are distributed.
double train_step(Mlp& model, torch::optim::Optimizer& optimizer, const torch::Tensor& x, const torch::Tensor& y) {
  optimizer.zero_grad();
  auto loss = torch::nn::functional::cross_entropy(model(x), y);
  loss.backward();
  optimizer.step();
  return loss.item<double>();
}

}  // namespace

int main() {
  intarsia::init();  // joins the ranks that a launcher started; alone, a world of one
  std::optional<intarsia::Simulation> simulation;
  if (intarsia::current_world().size() == 1) simulation.emplace(4);
  auto mesh = intarsia::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});

  torch::manual_seed(0);
  auto x = torch::randn({kBatch, kIn});
  auto y = torch::randint(kClasses, {kBatch});
  torch::manual_seed(1);
  Mlp alone;
  torch::manual_seed(1);  // the same first weights
  Mlp model;
  torch::optim::AdamW optimizer_alone(alone->parameters(), 0.01);
  torch::optim::AdamW optimizer(model->parameters(), 0.01);

  intarsia::distribute_module(*model, mesh, split_over_tp);  // in place: the optimizer sees it
  auto dx = intarsia::distribute_tensor(x, mesh, {Shard(0), Replicate()});
  auto dy = intarsia::distribute_tensor(y, mesh, {Shard(0), Replicate()});

  bool speaks = intarsia::current_world().hosted()[0] == 0;  // one of the ranks speaks for all
  if (speaks) {
    std::cout << "The parameters on " << mesh.text() << ", " << intarsia::current_world().text() << ":\n"
              << intarsia::describe(*model)
              << "\nWhich ranks hold what of fc1.weight: " << intarsia::visualize_sharding(model->fc1->weight)
              << "and of the batch: " << intarsia::visualize_sharding(dx) << "\nstep  loss on the mesh  on one rank"
              << std::endl;
  }
  bool same = true;
  intarsia::CommDebugMode comms;
  for (int step = 0; step < kSteps; ++step) {
    comms.enter();  // keeps the last step only
    auto loss = train_step(model, optimizer, dx, dy);
    comms.exit();
    auto expected = train_step(alone, optimizer_alone, x, y);
    bool agree = std::abs(loss - expected) <= 1e-6;
    same = same && agree;
    if (speaks) std::printf("%4d  %16.9f  %11.9f%s\n", step, loss, expected, agree ? "" : "  DIFFERS");
  }
  if (speaks) {
    std::fflush(stdout);
    std::cout << "\nWhat a rank sent or received in the last step:\n"
              << comms.table() << "\n"
              << (same ? "every loss is that of one rank to 1e-6" : "A LOSS DIFFERS") << std::endl;
  }
  return same ? 0 : 1;
}
