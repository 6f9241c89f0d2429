// Random numbers on four ranks beside the plain op on a quarter, and beside the plain op on the whole.
//
//   intarsia run -n 4 build/benchmarks/12_random
//
// Started alone, it starts itself that way. Processor time of the slowest rank, best of several rounds: four ranks may
// have fewer cores.

#include <sys/resource.h>
#include <torch/torch.h>

#include "benchmarks/processes.h"
#include "examples/llama.h"
#include "intarsia/comm/agreement.h"
#include "intarsia/comm/axis.h"
#include "intarsia/intarsia.h"

using namespace intarsia;

namespace {

DeviceMesh mesh;

double slowest(double microseconds) {
  return static_cast<double>(exchange_max(Axis::whole(mesh), static_cast<int64_t>(microseconds)));
}

template <class F>
double best_us(F call) {
  auto time = bench::time_us(call, 1, 5);
  return slowest(time);
}

void row(const char* what, double ours, double reference, const char* of) {
  if (rank() == 0)
    printf("%-36s %9.1f ms   %.2fx of %s (%.1f ms)\n", what, ours * 1e-3, ours / reference, of, reference * 1e-3);
}

// The most memory that this process has had, in bytes; and what it has now.
int64_t most_memory() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

int64_t memory_now() {
  long pages = 0, resident = 0;
  auto* file = fopen("/proc/self/statm", "r");
  TORCH_CHECK(file && fscanf(file, "%ld %ld", &pages, &resident) == 2, "no /proc/self/statm");
  fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

// To be called before anything large is made: what a process has once had stays its most.
void births() {
  llama::Options options{.vocabulary = 32000, .width = 768, .layers = 8, .heads = 12, .key_heads = 12, .hidden = 2048};
  {
    BornSharded scope(mesh);
    llama::Model warm(llama::Options{});
  }
  auto before = memory_now();
  auto start = bench::cpu_us();
  BornSharded scope(mesh);
  llama::Model model(options);
  scope.finish(model);
  auto ours = slowest(bench::cpu_us() - start);
  auto peak = static_cast<double>(exchange_max(Axis::whole(mesh), most_memory() - before));
  double share = 0, count = 0;
  for (auto& parameter : model->parameters()) {
    share += static_cast<double>(shards_of(parameter)[0].nbytes());
    count += static_cast<double>(parameter.numel());
  }
  auto whole_start = bench::cpu_us();
  {
    llama::Model whole(options);
  }
  auto whole = slowest(bench::cpu_us() - whole_start);
  if (rank() == 0) {
    printf("a Llama of %.0f M parameters, born: peak of a rank %.2fx of its share (%.0f MB)\n", count / 1e6,
           peak / share, share / 1e6);
  }
  row("the same", ours, whole, "plain, the whole");
}

void draws() {
  auto whole = torch::empty({8192, 8192}), quarter = torch::empty({2048, 8192});
  auto by_rows = empty({8192, 8192}, mesh, {Shard(0)}), by_columns = empty({8192, 8192}, mesh, {Shard(1)});
  auto all = best_us([&] { whole.normal_(); }), part = best_us([&] { quarter.normal_(); });
  RandomScope scope(mesh);
  row("normal_ of 8192x8192, [S(0)]", best_us([&] { by_rows.normal_(); }), part, "plain, a quarter");
  row("normal_ of 8192x8192, [S(1)]", best_us([&] { by_columns.normal_(); }), all, "plain, the whole");
}

void dropouts() {
  torch::NoGradGuard no_grad;
  auto whole = torch::ones({4096, 4096}), quarter = torch::ones({1024, 4096});
  auto by_rows = ones({4096, 4096}, mesh, {Shard(0)}), by_columns = ones({4096, 4096}, mesh, {Shard(1)});
  auto all = best_us([&] { torch::dropout(whole, 0.1, true); }),
       part = best_us([&] { torch::dropout(quarter, 0.1, true); });
  RandomScope scope(mesh);
  row("dropout of 4096x4096, [S(0)]", best_us([&] { torch::dropout(by_rows, 0.1, true); }), part, "plain, a quarter");
  row("dropout of 4096x4096, [S(1)]", best_us([&] { torch::dropout(by_columns, 0.1, true); }), all, "plain, the whole");
}

}  // namespace

int main(int argc, char** argv) {
  bench::start_as_ranks(argv, 4);
  at::set_num_threads(1);
  init();
  mesh = init_device_mesh(torch::kCPU, {world_size()}, {"dp"});
  torch::manual_seed(1);
  if (rank() == 0) printf("\nrandom numbers on %ld ranks, processor time\n", world_size());
  births();
  draws();
  dropouts();
}
