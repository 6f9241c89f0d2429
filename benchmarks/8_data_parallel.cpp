// A training step of replicate and of fully_shard over two ranks, beside DDP and fully_shard of PyTorch.
//
//   intarsia run -n 2 build/benchmarks/8_data_parallel
//
// Started alone, it starts itself that way. The name of a workload as an argument runs only that one. Wall time of forward,
// backward and an SGD step, best of several. "Above compute" is what a step costs more than the same step of one rank without
// communication, each side beside its own.

#include <torch/torch.h>

#include <cstdlib>
#include <functional>

#include "benchmarks/processes.h"
#include "intarsia/data_parallel/fully_shard.h"
#include "intarsia/data_parallel/replicate.h"
#include "intarsia/intarsia.h"

using namespace intarsia;

namespace {

namespace nn = torch::nn;

struct Workload {
  std::string name;
  std::function<nn::Sequential()> make;
  std::vector<int64_t> input;
  int steps;
};

nn::Sequential mlp(int64_t features, int64_t hidden) {
  return nn::Sequential(nn::Linear(features, hidden), nn::ReLU(), nn::Linear(hidden, features));
}

nn::Sequential transformer() {
  nn::Sequential model;
  for (int layer = 0; layer < 12; ++layer) {
    model->push_back(nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(256, 4).dim_feedforward(1024).dropout(0)));
  }
  return model;
}

using Wrap = std::function<void(nn::Sequential&)>;

double best_step_us(const Workload& workload, const Wrap& wrap) {
  torch::manual_seed(0);
  auto model = workload.make();
  wrap(model);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  torch::manual_seed(1 + rank());
  auto input = torch::rand(workload.input);
  double best = 1e30;
  for (int i = 0; i < workload.steps; ++i) {
    barrier();
    auto start = bench::wall_us();
    optimizer.zero_grad();
    model->forward(input).sum().backward();
    optimizer.step();
    if (i > 1) best = std::min(best, bench::wall_us() - start);
  }
  return best;
}

void shard(nn::Sequential& model, const DeviceMesh& mesh, std::optional<bool> reshard) {
  FullyShardOptions options;
  options.reshard_after_forward = reshard;
  for (auto& child : model->children()) {
    if (!child->parameters().empty()) fully_shard(*child, mesh, options);
  }
}

void print(const std::string& what, double ours, double compute, double peer, double peer_compute) {
  if (rank() != 0) return;
  printf("%-34s %9.2f ms, %8.2f above compute", what.c_str(), ours / 1e3, (ours - compute) / 1e3);
  if (peer > 0) {
    printf("   PyTorch %9.2f, %8.2f above: %.2fx", peer / 1e3, (peer - peer_compute) / 1e3,
           (ours - compute) / (peer - peer_compute));
  }
  printf("\n");
  fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  bench::start_as_ranks(argv, 2);
  at::set_num_threads(1);
  init();
  auto mesh = init_device_mesh(torch::kCPU, {world_size()}, {"dp"});
  auto peer = rank() ? std::map<std::string, double>()
                     : bench::read_values("env -u RANK -u WORLD_SIZE -u LOCAL_RANK ${INTARSIA_PYTHON:-python3} "
                                          "benchmarks/peer_data_parallel.py 2>/dev/null");
  barrier();
  for (auto& workload : {Workload{"mlp_10_16", [] { return mlp(10, 16); }, {12, 10}, 300},
                         Workload{"mlp_512_2048", [] { return mlp(512, 2048); }, {64, 512}, 40},
                         Workload{"transformer", transformer, {128, 4, 256}, 8}}) {
    auto& name = workload.name;
    if (argc > 1 && name != argv[1]) continue;
    auto compute = best_step_us(workload, [](auto&) {});
    if (rank() == 0) printf("%-34s %9.2f ms\n", (name + " compute alone").c_str(), compute / 1e3);
    auto alone = peer[name + "_compute"];
    ReplicateOptions view;
    view.gradient_as_bucket_view = true;
    auto run = [&](const char* what, const char* peers_name, const Wrap& wrap) {
      print(what, best_step_us(workload, wrap), compute, peer[name + peers_name], alone);
    };
    run("  replicate", "_ddp", [&](auto& model) { replicate(*model, mesh); });
    run("  replicate, gradients in buckets", "_ddp_view", [&](auto& model) { replicate(*model, mesh, view); });
    run("  fully_shard", "_fsdp", [&](auto& model) { shard(model, mesh, true); });
    run("  fully_shard, kept after forward", "_fsdp_kept", [&](auto& model) { shard(model, mesh, false); });
  }
  finalize();
}
