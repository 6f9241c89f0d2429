// Redistribution over gloo, two ranks, beside the raw collective and beside torch.distributed.tensor.
//
//   intarsia run -n 2 build/benchmarks/2_redistribute
//
// Started alone, it starts itself that way. Wall time, median, all sides in turn.

#include <torch/torch.h>

#include <cstdlib>
#include <unistd.h>

#include "benchmarks/timing.h"
#include "intarsia/comm/axis.h"
#include "intarsia/intarsia.h"

using namespace intarsia;

namespace {

template <class F>
double median_us(F call, int calls) {
  std::vector<double> times;
  for (int i = 0; i < calls; ++i) {
    barrier();
    auto start = bench::wall_us();
    call();
    times.push_back(bench::wall_us() - start);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void print(const char* what, double microseconds, double reference, const char* of) {
  if (rank() != 0) return;
  printf("%-44s %10.1f us", what, microseconds);
  if (reference > 0) printf("   %.2fx of %s (%.1f us)", microseconds / reference, of, reference);
  printf("\n");
  fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (!std::getenv("WORLD_SIZE")) {
    auto launcher = std::string(argv[0]).substr(0, std::string(argv[0]).rfind("benchmarks")) + "bin/intarsia";
    execl(launcher.c_str(), "intarsia", "run", "-n", "2", "--no-prefix", argv[0], nullptr);
    perror(launcher.c_str());
    return 1;
  }
  at::set_num_threads(1);
  init();
  torch::NoGradGuard no_grad;
  auto n = world_size();
  auto mesh = init_device_mesh(torch::kCPU, {n}, {"tp"});
  auto& axis = Axis::of(mesh, 0);

  // 4 MB: the raw engine call on buffers of the right size, against redistribute.
  auto whole = torch::rand({1024, 1024});
  auto cut = distribute_tensor(whole, mesh, {Shard(0)});
  auto mine = cut.defined() ? shards_of(cut)[0] : at::Tensor();
  Counts counts{std::vector<int64_t>(n, mine.numel())};
  Shards flat{mine.view({-1})};
  auto raw_gather = median_us([&] { axis.all_gather(flat, {at::empty({mine.numel() * n})}, counts); }, 200);
  print("all_gather 4 MB: S(0) -> R", median_us([&] { redistribute(cut, {Replicate()}); }, 200), raw_gather, "raw");
  auto pending = from_local(whole, mesh, {Partial()});
  auto raw_reduce = median_us([&] { axis.all_reduce({whole}, ReduceOp::sum); }, 200);
  print("all_reduce 4 MB: P(sum) -> R", median_us([&] { redistribute(pending, {Replicate()}); }, 200), raw_reduce, "raw");

  auto square = distribute_tensor(torch::rand({512, 512}), mesh, {Shard(0)});
  auto peer = rank() ? std::map<std::string, double>()
                     : bench::read_values("env -u RANK -u WORLD_SIZE -u LOCAL_RANK ${INTARSIA_PYTHON:-python3} "
                                          "benchmarks/peer_redistribute.py 2>/dev/null");
  barrier();
  auto gather = median_us([&] { shards_of(redistribute(square, {Replicate()}))[0].sum(); }, 200);
  print("512x512 S(0) -> R", gather, peer["S0_R"], "torch.distributed.tensor");
  auto turn = median_us([&] { shards_of(redistribute(square, {Shard(1)}))[0].sum(); }, 200);
  print("512x512 S(0) -> S(1)", turn, peer["S0_S1"], "torch.distributed.tensor");
  finalize();
}
