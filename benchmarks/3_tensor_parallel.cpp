// A training step of a tensor-parallel MLP, two ranks, beside parallelize_module of PyTorch and beside the compute alone.
//
//   intarsia run -n 2 build/benchmarks/3_tensor_parallel
//
// Started alone, it starts itself that way. Wall time of forward, backward and an SGD step, median.

#include <torch/torch.h>

#include <cstdlib>

#include "benchmarks/processes.h"
#include "benchmarks/silent.h"
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

bench::Measured train(const DeviceMesh& mesh, int64_t features, int64_t hidden, int64_t batch, int steps) {
  torch::manual_seed(0);
  Mlp model(features, hidden);
  parallelize_module(model, mesh, {{"net1", ColwiseParallel()}, {"net2", RowwiseParallel()}});
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  auto input = torch::rand({batch, features});
  auto step = [&] {
    optimizer.zero_grad();
    model(input).sum().backward();
    optimizer.step();
  };
  return bench::measure_step(step, steps);
}

// The same on ranks that do not talk.
double compute_alone(int64_t features, int64_t hidden, int64_t batch, int steps) {
  WorldScope scope(bench::silent_twin(current_world()));
  auto mesh = init_device_mesh(torch::kCPU, {world_size()}, {"tp"});
  return train(mesh, features, hidden, batch, steps).microseconds;
}

void print(const char* what, const bench::Measured& ours, double alone, double peer, double goal) {
  if (rank() != 0) return;
  printf("%-44s %10.1f us   %d collectives, %d bytes", what, ours.microseconds, int(ours.collectives), int(ours.bytes));
  printf("   %.2fx of the compute alone (%.1f us)", ours.microseconds / alone, alone);
  if (peer > 0) printf("   %.2fx of torch.distributed.tensor (%.1f us; goal %.1fx)", ours.microseconds / peer, peer, goal);
  printf("\n");
  fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  bench::start_as_ranks(argv, 2);
  at::set_num_threads(1);
  init();
  auto mesh = init_device_mesh(torch::kCPU, {world_size()}, {"tp"});
  auto peer = rank() ? std::map<std::string, double>()
                     : bench::read_values("env -u RANK -u WORLD_SIZE -u LOCAL_RANK ${INTARSIA_PYTHON:-python3} "
                                          "benchmarks/peer_tensor_parallel.py 2>/dev/null");
  barrier();
  print("MLP 10-16-10, batch 12, training step", train(mesh, 10, 16, 12, 300), compute_alone(10, 16, 12, 300),
        peer["small"], 0.5);
  print("MLP 512-2048-512, batch 64, training step", train(mesh, 512, 2048, 64, 60), compute_alone(512, 2048, 64, 60),
        peer["large"], 0.8);
  finalize();
}
