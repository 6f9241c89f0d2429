// Data parallelism with replicate: a plain MLP and a convolutional network with batch norms, each rank with its part of
// every batch. Beside them one rank trains on all parts, one after the other.
//
// Run it by itself, and this process plays four ranks:
//   build/examples/6_data_parallel
// or as two processes:
//   intarsia run -n 2 build/examples/6_data_parallel
//
// It prints the losses of both and what was sent in the last step, and ends with an error if any loss or parameter
// differs from those of one rank by more than 1e-5.
#include <cmath>
#include <cstdio>
#include <iostream>
#include <optional>

#include <torch/torch.h>

#include "intarsia/intarsia.h"

using namespace intarsia;
namespace nn = torch::nn;

namespace {

constexpr int kSteps = 20;

nn::Sequential mlp() { return nn::Sequential(nn::Linear(10, 32), nn::ReLU(), nn::Linear(32, 3)); }

nn::Sequential cnn() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1).bias(false)), nn::BatchNorm2d(8), nn::ReLU(),
                        nn::AdaptiveAvgPool2d(2), nn::Flatten(), nn::Linear(32, 3));
}

// Mean squared distance to a target that the inputs tell.
torch::Tensor loss_of(nn::Sequential& model, const torch::Tensor& x) {
  auto target = x.flatten(1).narrow(1, 0, 3).sin();
  return (model->forward(x) - target).square().mean();
}

// One rank that has all parts of a batch: the mean of their losses. Batch norms see one part at a time, as on the
// ranks.
double step_on_one_rank(nn::Sequential& model, torch::optim::Optimizer& optimizer, const torch::Tensor& batch,
                        int64_t parts) {
  optimizer.zero_grad();
  double sum = 0;
  for (auto& part : batch.chunk(parts)) {
    auto loss = loss_of(model, part) / static_cast<double>(parts);
    loss.backward();
    sum += loss.item<double>();
  }
  optimizer.step();
  return sum;
}

double step_on_all_ranks(nn::Sequential& model, torch::optim::Optimizer& optimizer, const torch::Tensor& batch,
                         const DeviceMesh& mesh) {
  optimizer.zero_grad();
  auto mine = to_local(distribute_tensor(batch, mesh, {Shard(0)}));  // the rows of this rank
  auto loss = loss_of(model, mine);
  loss.backward();
  optimizer.step();
  return full_tensor(from_local(loss.detach(), mesh, {Partial(ReduceOp::avg)})).item<double>();
}

bool train(const char* name, nn::Sequential (*make)(), std::vector<int64_t> batch, const DeviceMesh& mesh,
           bool speaks) {
  torch::manual_seed(1);
  auto model = make();
  torch::manual_seed(1);  // the same first weights
  auto alone = make();
  replicate(*model, mesh);
  torch::optim::AdamW optimizer(model->parameters(), 0.01), optimizer_alone(alone->parameters(), 0.01);
  if (speaks) std::printf("%s\nstep  loss on %d ranks  on one rank\n", name, static_cast<int>(mesh.size()));
  bool same = true;
  for (int step = 0; step < kSteps; ++step) {
    torch::manual_seed(100 + step);
    auto x = torch::randn(batch);
    std::optional<CommDebugMode> comms;
    if (step == kSteps - 1) comms.emplace();
    auto loss = step_on_all_ranks(model, optimizer, x, mesh);
    if (comms) comms->exit();
    auto expected = step_on_one_rank(alone, optimizer_alone, x, mesh.size());
    bool agree = std::abs(loss - expected) <= 1e-5;
    same = same && agree;
    if (speaks && (step % 5 == 4 || !agree))
      std::printf("%4d  %14.9f  %11.9f%s\n", step, loss, expected, agree ? "" : "  DIFFERS");
    if (speaks && comms) std::cout << comms->table() << std::endl;
  }
  auto expected = alone->named_parameters();
  for (auto& item : model->named_parameters())
    same = same && torch::allclose(item.value(), expected[item.key()], 1e-4, 1e-5);
  return same;
}

}  // namespace

int main() {
  init();  // joins the ranks that a launcher started; alone, a world of one
  std::optional<Simulation> simulation;
  if (current_world().size() == 1) simulation.emplace(4);
  auto mesh = init_device_mesh(torch::kCPU, {current_world().size()}, {"dp"});
  bool speaks = current_world().hosted()[0] == 0;  // one of the ranks speaks for all
  bool same = train("MLP", mlp, {16, 10}, mesh, speaks);
  same = train("CNN with batch norms", cnn, {16, 3, 8, 8}, mesh, speaks) && same;
  if (speaks)
    std::cout << (same ? "every loss and parameter is that of one rank to 1e-5" : "SOMETHING DIFFERS") << std::endl;
  return same ? 0 : 1;
}
