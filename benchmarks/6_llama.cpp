// A training step of four Llama-style blocks, two ranks, tensor and sequence parallel, beside the same in PyTorch
// (peer_llama.py) and beside the compute alone.
//
//   intarsia run -n 2 build/benchmarks/6_llama
//
// Started alone, it starts itself that way. Wall time of forward, backward and an SGD step, median.

#include <memory>

#include "benchmarks/steps.h"
#include "examples/llama.h"

using namespace intarsia;

namespace {

constexpr int64_t kBatch = 4, kLength = 128;
constexpr int kSteps = 40;

struct StackImpl : torch::nn::Module {
  explicit StackImpl(const llama::Options& options) : layers(register_module("layers", torch::nn::ModuleList())) {
    for (int64_t i = 0; i < options.layers; ++i) layers->push_back(llama::Block(options));
    auto half = options.head_width() / 2;
    auto speeds = torch::pow(10000.0, torch::arange(half) / -static_cast<double>(half));
    auto angles = torch::arange(kLength).unsqueeze(1) * speeds;
    cos = register_buffer("cos", angles.cos());
    sin = register_buffer("sin", angles.sin());
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : *layers) x = layer->as<llama::Block>()->forward(x, cos, sin);
    return x;
  }
  torch::nn::ModuleList layers;
  at::Tensor cos, sin;
};
TORCH_MODULE(Stack);

// The entries of the example's plan that are for blocks, and for the tables.
ParallelPlan block_plan(const llama::Options& options) {
  std::vector<ParallelPlan::Entry> entries;
  auto whole = llama::plan(options);
  for (auto& entry : whole.entries()) {
    if (entry.first.empty() || entry.first.rfind("layers", 0) == 0) entries.push_back(entry);
  }
  return entries;
}

bench::Call training(const DeviceMesh& mesh) {
  llama::Options options{.width = 256, .layers = 4, .heads = 8, .key_heads = 4, .hidden = 688};
  torch::manual_seed(0);
  Stack model(options);
  parallelize_module(model, mesh, block_plan(options));
  auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 0.01);
  auto input = distribute_tensor(torch::rand({kBatch, kLength, options.width}), mesh, {Shard(1)});
  return [=]() mutable {
    optimizer->zero_grad();
    model(input).square().mean().backward();
    optimizer->step();
  };
}

}  // namespace

int main(int, char** argv) {
  auto peer = bench::start_beside_peer(argv, "peer_llama.py");
  auto ours = bench::measure_step(training, kSteps);
  if (rank() == 0) {
    printf("4 Llama-style blocks, 4x128x256, training step\n");
    printf("  %-24s %8.1f ms  %3d collectives  %9d bytes\n", "Intarsia", ours.microseconds / 1000,
           int(ours.collectives), int(ours.bytes));
    printf("  %-24s %8.1f ms   Intarsia takes %.2fx of its time\n", "the compute alone", ours.alone / 1000,
           ours.microseconds / ours.alone);
    if (peer.count("time")) {
      printf("  %-24s %8.1f ms  %3d collectives  %9d bytes   Intarsia takes %.2fx of its time\n",
             "torch.distributed.tensor", peer["time"] / 1000, int(peer["collectives"]), int(peer["bytes"]),
             ours.microseconds / peer["time"]);
    }
    fflush(stdout);
  }
  finalize();
}
