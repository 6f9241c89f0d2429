// A training step of a tensor-parallel MLP, two ranks, beside parallelize_module of PyTorch and beside the compute
// alone.
//
//   intarsia run -n 2 build/benchmarks/3_tensor_parallel
//
// Started alone, it starts itself that way. Wall time of forward, backward and an SGD step, median.

#include <torch/torch.h>

#include <memory>

#include "benchmarks/steps.h"
#include "intarsia/intarsia.h"

using namespace intarsia;

namespace {

struct MlpImpl : torch::nn::Module {
  MlpImpl(int64_t features, int64_t hidden)
      : net1(register_module("net1", torch::nn::Linear(features, hidden))),
        net2(register_module("net2", torch::nn::Linear(hidden, features))) {}
  at::Tensor forward(const at::Tensor& x) { return net2(torch::relu(net1(x))); }
  torch::nn::Linear net1, net2;
};
TORCH_MODULE(Mlp);

bench::Measured train(int64_t features, int64_t hidden, int64_t batch, int steps) {
  auto make = [&](const DeviceMesh& mesh) -> bench::Call {
    torch::manual_seed(0);
    Mlp model(features, hidden);
    parallelize_module(model, mesh, {{"net1", ColwiseParallel()}, {"net2", RowwiseParallel()}});
    auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 0.01);
    auto input = torch::rand({batch, features});
    return [=]() mutable {
      optimizer->zero_grad();
      model(input).sum().backward();
      optimizer->step();
    };
  };
  return bench::measure_step(make, steps);
}

void print(const char* what, const bench::Measured& ours, double peer, double goal) {
  if (rank() != 0) return;
  printf("%-44s %10.1f us   %d collectives, %d bytes", what, ours.microseconds, int(ours.collectives), int(ours.bytes));
  printf("   %.2fx of the compute alone (%.1f us)", ours.microseconds / ours.alone, ours.alone);
  if (peer > 0)
    printf("   %.2fx of torch.distributed.tensor (%.1f us; goal %.1fx)", ours.microseconds / peer, peer, goal);
  printf("\n");
  fflush(stdout);
}

}  // namespace

int main(int, char** argv) {
  auto peer = bench::start_beside_peer(argv, "peer_tensor_parallel.py");
  print("MLP 10-16-10, batch 12, training step", train(10, 16, 12, 1000), peer["small"], 0.5);
  print("MLP 512-2048-512, batch 64, training step", train(512, 2048, 64, 100), peer["large"], 0.8);
  finalize();
}
