// What a distributed op costs over the plain op, on tensors of 4x4 in a world of one rank, beside
// torch.distributed.tensor doing the same on this machine in the same run (peer_ops.py). Processor time, best of seven
// rounds.

#include <torch/torch.h>

#include <cstdlib>

#include "benchmarks/timing.h"
#include "intarsia/intarsia.h"

using namespace intarsia;

namespace {

struct Inputs {
  at::Tensor a, b;
};

using Body = std::function<at::Tensor(const Inputs&)>;
const std::vector<std::pair<std::string, Body>> kOps = {
    {"add", [](auto& in) { return in.a + in.b; }},
    {"mm", [](auto& in) { return in.a.mm(in.b); }},
    {"relu", [](auto& in) { return in.a.relu(); }},
    {"detach", [](auto& in) { return in.a.detach(); }},
    {"view", [](auto& in) { return in.a.view({16}); }},
    {"sum", [](auto& in) { return in.a.sum(); }},
    {"add_", [](auto& in) { return at::Tensor(in.b).add_(in.b); }},
};

void print_overheads(bool grad, const std::map<std::string, double>& peer) {
  auto mesh = init_device_mesh(torch::kCPU, {1}, {"tp"});
  auto a = torch::zeros({4, 4}), b = torch::zeros({4, 4});
  Inputs plain{a.clone().requires_grad_(grad), b};
  Inputs cut{distribute_tensor(a, mesh, {Shard(0)}).requires_grad_(grad), distribute_tensor(b, mesh, {Replicate()})};
  printf("\n%-8s %10s %12s %10s %12s %8s   (us, %s grad)\n", "op", "plain", "distributed", "over", "peer's over",
         "ratio", grad ? "with" : "without");
  for (auto& [name, body] : kOps) {
    auto p = bench::time_us([&] { body(plain); }), d = bench::time_us([&] { body(cut); });
    auto theirs = peer.find(name + (grad ? "_grad" : ""));
    printf("%-8s %10.3f %12.3f %10.3f", name.c_str(), p, d, d - p);
    if (theirs != peer.end())
      printf(" %12.3f %8s", theirs->second,
             ("1/" + std::to_string(static_cast<int>(theirs->second / std::max(d - p, 0.001)))).c_str());
    printf("\n");
  }
}

// A call on shapes that were never seen, minus the same call again.
double miss_us(const DeviceMesh& mesh, const Placements& first, const Placements& second, bool product) {
  torch::NoGradGuard no_grad;
  std::vector<Inputs> calls;
  for (int i = 0; i < 200; ++i) {
    auto rows = 8 + i + (product ? 1000 : 0);
    auto b = product ? zeros({16, 16}, mesh, second) : zeros({rows, 16}, mesh, second);
    calls.push_back({zeros({rows, 16}, mesh, first), b});
  }
  double took[2];
  for (auto& microseconds : took) {
    auto start = bench::cpu_us();
    for (auto& in : calls) product ? in.a.mm(in.b) : in.a + in.b;
    microseconds = (bench::cpu_us() - start) / static_cast<double>(calls.size());
  }
  return took[0] - took[1];
}

void print_misses() {
  auto world = simulate(4);
  auto line = init_device_mesh(torch::kCPU, {4});
  auto grid = init_device_mesh(torch::kCPU, {2, 2});
  printf("\ncache miss, us (goal: 50 on a 1-D mesh, 200 on a 2-D mesh)\n");
  printf("%-28s %8.1f\n", "add, 1-D", miss_us(line, {Shard(0)}, {Shard(0)}, false));
  printf("%-28s %8.1f\n", "mm, 1-D", miss_us(line, {Shard(0)}, {Replicate()}, true));
  printf("%-28s %8.1f\n", "add, 2-D", miss_us(grid, {Shard(0), Replicate()}, {Shard(0), Replicate()}, false));
  printf("%-28s %8.1f\n", "mm, 2-D", miss_us(grid, {Shard(0), Shard(1)}, {Replicate(), Shard(0)}, true));
}

void print_simulated() {
  printf("\nsimulated add of 4x4 per rank, us (goal: 10 for 4 ranks, 150 for 64)\n");
  for (int64_t n : {4, 64}) {
    auto world = simulate(n);
    auto mesh = init_device_mesh(torch::kCPU, {n});
    auto a = zeros({4 * n, 4}, mesh, {Shard(0)}), b = zeros({4 * n, 4}, mesh, {Shard(0)});
    printf("%-28s %8.1f\n", (std::to_string(n) + " ranks").c_str(), bench::time_us([&] { a + b; }, 500));
  }
}

}  // namespace

int main() {
  at::set_num_threads(1);
  auto* python = std::getenv("INTARSIA_PYTHON");
  auto peer = bench::read_values(std::string(python ? python : "python3") + " benchmarks/peer_ops.py 2>/dev/null");
  if (peer.empty()) printf("torch.distributed.tensor could not be measured here: its columns are left out\n");
  print_overheads(false, peer);
  print_overheads(true, peer);
  print_misses();
  print_simulated();
}
