// Simulations of many ranks: what one process takes to play 64, 256 and 1,024 of them, in time and memory, and a
// training step of the Llama of the examples on 64 ranks beside the same step without any.
//
//   build/benchmarks/10_many_ranks [moves | parameters | llama]

#include <unistd.h>

#include <fstream>

#include "benchmarks/timing.h"
#include "examples/llama.h"
#include "intarsia/comm/axis.h"

using namespace intarsia;

namespace {

double resident_mb() {
  long pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) / 1e6;
}

// Time of the second call, and what its result keeps in memory.
template <class Call>
void report(const char* what, int64_t ranks, Call call) {
  call();
  auto before = resident_mb(), start = bench::wall_us();
  [[maybe_unused]] auto result = call();
  printf("  %5ld ranks  %-46s %9.1f ms  %8.1f MB\n", ranks, what, (bench::wall_us() - start) / 1000,
         resident_mb() - before);
  fflush(stdout);
}

void move_values(int64_t ranks) {
  auto world = simulate(ranks);
  auto mesh = init_device_mesh(torch::kCPU, {ranks}, {"x"});
  auto side = static_cast<int64_t>(std::sqrt(ranks));
  auto square = init_device_mesh(torch::kCPU, {side, side}, {"x", "y"});
  auto whole = torch::rand({ranks, 64});
  auto rows = distribute_tensor(whole, mesh, {Shard(0)}), columns = distribute_tensor(whole, mesh, {Shard(1)});
  auto tiles = distribute_tensor(whole, square, {Shard(0), Shard(1)}),
       nested = distribute_tensor(whole, square, {Shard(0), Shard(0)});
  auto everywhere = distribute_tensor(whole, square, {Replicate(), Replicate()});
  report("[n, 64] S(0) -> R", ranks, [&] { return redistribute(rows, {Replicate()}); });
  report("[n, 64] S(1) -> R", ranks, [&] { return redistribute(columns, {Replicate()}); });
  report("[n, 64] S(0), S(1) -> R, R", ranks, [&] { return redistribute(tiles, {Replicate(), Replicate()}); });
  report("[n, 64] S(0) -> S(1)", ranks, [&] { return redistribute(rows, {Shard(1)}); });
  report("[n, 64] S(0), S(1) -> S(1), S(0)", ranks, [&] { return redistribute(tiles, {Shard(1), Shard(0)}); });
  report("[n, 64] S(0), S(0) -> R, S(0)", ranks, [&] { return redistribute(nested, {Replicate(), Shard(0)}); });
  report("[n, 64] R, R -> S(0), S(1)", ranks, [&] { return redistribute(everywhere, {Shard(0), Shard(1)}); });
  report("[n, 64] full_tensor of S(0), S(1)", ranks, [&] { return full_tensor(tiles); });
  report("[n, 64] distribute_tensor, R", ranks, [&] { return distribute_tensor(whole, mesh, {Replicate()}); });
  report("[n, 64] distribute_tensor, S(0), S(1)", ranks,
         [&] { return distribute_tensor(whole, square, {Shard(0), Shard(1)}); });
  report("[64, 64] S(1) times S(0), P(sum) -> R", ranks,
         [&] { return redistribute(torch::mm(rows.t(), rows), {Replicate()}); });
  report("[64, 64] S(1) times S(0), P(sum) -> S(0)", ranks,
         [&] { return redistribute(torch::mm(rows.t(), rows), {Shard(0)}); });
  auto pending = torch::mm(tiles.t(), tiles);
  report("[64, 64] pending on both axes -> R, R", ranks,
         [&] { return redistribute(pending, {Replicate(), Replicate()}); });
  report("[n, 64] S(0), gathered and back", ranks, [&] {
    auto leaf = rows.detach().requires_grad_();
    (redistribute(leaf, {Replicate()}) * 2).sum().backward();
    return leaf.grad();
  });
  auto replicated = distribute_tensor(whole, mesh, {Replicate()});
  report("[n, 64] R + R", ranks, [&] { return replicated + replicated; });
  report("[n, 64] R.add_(1)", ranks, [&] { return replicated.add_(1); });
  Shards own;
  for (int64_t rank = 0; rank < ranks; ++rank) own.push_back(torch::full({64}, static_cast<double>(rank)));
  auto& axis = Axis::of(mesh, 0);
  report("[64] all_reduce", ranks, [&] { return axis.all_reduce(own, ReduceOp::sum); });
  report("[64] broadcast", ranks, [&] { return axis.broadcast(own, 1), own; });
}

// Parameters of a module that is cut over all ranks, or the same on all, and what an optimizer keeps for them.
void make_parameters(int64_t ranks) {
  auto world = simulate(ranks);
  auto mesh = init_device_mesh(torch::kCPU, {ranks}, {"x"});
  auto made = [&](bool cut) {
    torch::nn::Sequential model(torch::nn::Linear(256, 1024), torch::nn::Linear(1024, 256));
    if (cut) parallelize_module(model, mesh, {{"0", ColwiseParallel()}, {"1", RowwiseParallel()}});
    if (!cut) distribute_module(*model, mesh);
    return model;
  };
  report("Linear 256-1024-256, parallelize_module", ranks, [&] { return made(true); });
  report("Linear 256-1024-256, distribute_module", ranks, [&] { return made(false); });
  for (bool cut : {true, false}) {
    auto model = made(cut);
    torch::optim::AdamW optimizer(model->parameters(), 0.01);
    auto input = distribute_tensor(torch::rand({8, 256}), mesh, {Replicate()});
    report(cut ? "the same, a step of the cut one" : "the same, a step of the other", ranks, [&] {
      optimizer.zero_grad();
      model->forward<torch::Tensor>(input).square().sum().backward();
      optimizer.step();
      return 0;
    });
  }
}

// Microseconds of a training step, the best of several. Along "tp" a mesh has tensor and sequence parallelism, along
// "dp" the batch is cut, and so are parameters, gradients and the optimizer's states.
double llama_step(const llama::Options& options, int64_t batch, int64_t length, const DeviceMesh* mesh) {
  torch::manual_seed(1);
  llama::Model model(options);
  torch::optim::AdamW optimizer(model->parameters(), 0.01);
  auto text = torch::randint(options.vocabulary, {batch, length + 1});
  auto tokens = text.narrow(1, 0, length), target = text.narrow(1, 1, length).contiguous();
  if (mesh) {
    parallelize_module(model, (*mesh)["tp"], llama::plan(options));
    if (mesh->size(0) > 1) {
      for (auto& layer : *model->layers) fully_shard(*layer, (*mesh)["dp"]);
      fully_shard(*model, (*mesh)["dp"]);
    }
    auto mine = [&](const torch::Tensor& t) { return to_local(distribute_tensor(t, (*mesh)["dp"], {Shard(0)})); };
    tokens = mine(tokens), target = from_local(mine(target), (*mesh)["tp"], {Replicate()});
  }
  double best = 1e30;
  for (int i = 0; i < 6; ++i) {
    auto start = bench::wall_us();
    optimizer.zero_grad();
    llama::loss(model(tokens), target).backward();
    optimizer.step();
    if (i) best = std::min(best, bench::wall_us() - start);  // the first one decides
  }
  return best;
}

void train_llama(const char* what, const llama::Options& options, int64_t batch, int64_t length,
                 std::vector<std::pair<int64_t, int64_t>> meshes) {
  auto alone = llama_step(options, batch, length, nullptr);
  printf("  Llama step, %s: one rank %.1f ms\n", what, alone / 1000);
  for (auto [dp, tp] : meshes) {
    auto world = simulate(dp * tp);
    auto mesh = init_device_mesh(torch::kCPU, {dp, tp}, {"dp", "tp"});
    auto many = llama_step(options, batch, length, &mesh);
    printf("  %5ld ranks, dp %ld, tp %ld  %9.1f ms  %.2fx\n", dp * tp, dp, tp, many / 1000, many / alone);
    fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  char only = argc > 1 ? argv[1][0] : ' ';  // moves, parameters, llama
  for (auto ranks : {64, 256, 1024}) {
    if (only == ' ' || only == 'm') move_values(ranks);
    if (only == ' ' || only == 'p') make_parameters(ranks);
  }
  if (only != ' ' && only != 'l') return 0;
  train_llama("2x64 tokens, width 32, 2 layers", {}, 2, 64, {{1, 64}});
  llama::Options wide{
      .vocabulary = 4096, .width = 512, .layers = 2, .heads = 64, .key_heads = 64, .hidden = 1408, .longest = 256};
  train_llama("8x256 tokens, width 512, 2 layers", wide, 8, 256, {{8, 8}, {1, 64}});
}
