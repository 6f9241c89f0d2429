// Simulations of many ranks: what one process takes to play 64, 256 and 1,024 of them, in time and memory, and a training step of
// the Llama of the examples on 64 ranks beside the same step without any.
//
//   build/benchmarks/10_many_ranks

#include <unistd.h>

#include <fstream>

#include "benchmarks/timing.h"
#include "examples/llama.h"

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
  auto result = call();
  printf("  %5ld ranks  %-46s %9.1f ms  %8.1f MB\n", ranks, what, (bench::wall_us() - start) / 1000, resident_mb() - before);
  fflush(stdout);
}

void move_values(int64_t ranks) {
  auto world = simulate(ranks);
  auto mesh = init_device_mesh(torch::kCPU, {ranks}, {"x"});
  auto side = static_cast<int64_t>(std::sqrt(ranks));
  auto square = init_device_mesh(torch::kCPU, {side, side}, {"x", "y"});
  auto whole = torch::rand({ranks, 64});
  auto rows = distribute_tensor(whole, mesh, {Shard(0)}), columns = distribute_tensor(whole, mesh, {Shard(1)});
  auto tiles = distribute_tensor(whole, square, {Shard(0), Shard(1)});
  report("[n, 64] S(0) -> R", ranks, [&] { return redistribute(rows, {Replicate()}); });
  report("[n, 64] S(1) -> R", ranks, [&] { return redistribute(columns, {Replicate()}); });
  report("[n, 64] S(0), S(1) -> R, R", ranks, [&] { return redistribute(tiles, {Replicate(), Replicate()}); });
  report("[n, 64] full_tensor of S(0), S(1)", ranks, [&] { return full_tensor(tiles); });
  report("[n, 64] distribute_tensor, R", ranks, [&] { return distribute_tensor(whole, mesh, {Replicate()}); });
  report("[n, 64] distribute_tensor, S(0), S(1)", ranks, [&] { return distribute_tensor(whole, square, {Shard(0), Shard(1)}); });
  report("[64, 64] S(1) times S(0), P(sum) -> R", ranks, [&] { return redistribute(torch::mm(rows.t(), rows), {Replicate()}); });
  auto replicated = distribute_tensor(whole, mesh, {Replicate()});
  report("[n, 64] R + R", ranks, [&] { return replicated + replicated; });
  report("[n, 64] R.add_(1)", ranks, [&] { return replicated.add_(1); });
}

// Microseconds of a training step, the best of several, with the model cut over the mesh if there is one.
double llama_step(const llama::Options& options, int64_t batch, int64_t length, const DeviceMesh* mesh) {
  torch::manual_seed(1);
  llama::Model model(options);
  torch::optim::AdamW optimizer(model->parameters(), 0.01);
  auto text = torch::randint(options.vocabulary, {batch, length + 1});
  auto tokens = text.narrow(1, 0, length), target = text.narrow(1, 1, length).contiguous();
  if (mesh) {
    parallelize_module(model, *mesh, llama::plan(options));
    target = distribute_tensor(target, *mesh, {Replicate()});
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

void train_llama(const char* what, const llama::Options& options, int64_t batch, int64_t length, int64_t ranks) {
  auto alone = llama_step(options, batch, length, nullptr);
  auto world = simulate(ranks);
  auto mesh = init_device_mesh(torch::kCPU, {ranks}, {"tp"});
  auto many = llama_step(options, batch, length, &mesh);
  printf("  %5ld ranks  %-46s %9.1f ms  one rank %8.1f ms  %.2fx\n", ranks, what, many / 1000, alone / 1000, many / alone);
  fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  bool all = argc == 1, moves = !all && argv[1][0] == 'm';
  for (auto ranks : {64, 256, 1024}) {
    if (all || moves) move_values(ranks);
  }
  if (moves) return 0;
  train_llama("Llama step, 2x64 tokens, width 32, 2 layers", {}, 2, 64, 64);
  llama::Options wide{.vocabulary = 4096, .width = 512, .layers = 2, .heads = 64, .key_heads = 64, .hidden = 1408, .longest = 256};
  train_llama("Llama step, 4x256 tokens, width 512, 2 layers", wide, 4, 256, 64);
}
