// Redistribution over gloo beside gloo's own collective on buffers of the same size, and beside
// torch.distributed.tensor.
//
//   intarsia run -n 2 build/benchmarks/2_redistribute
//
// Started alone, it starts itself that way. Wall time, median, the sides in turn.

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "benchmarks/processes.h"
#include "intarsia/intarsia.h"
#include "intarsia/transport/gloo/gloo_process_groups.h"

using namespace intarsia;

namespace {

constexpr int64_t kSide = 1024;  // kSide * kSide floats are 4 MB

c10::intrusive_ptr<c10d::Backend> raw_gloo() {
  auto path = "/tmp/intarsia_bench_" + std::string(std::getenv("MASTER_PORT"));
  auto store = c10::make_intrusive<c10d::FileStore>(path, world_size());
  return GlooMaker("127.0.0.1", std::chrono::seconds(60)).make(store, rank(), world_size());
}

void beside_gloo(const DeviceMesh& mesh) {
  auto gloo = raw_gloo();
  auto n = world_size();
  auto whole = torch::rand({kSide, kSide});
  auto rows = distribute_tensor(whole, mesh, {Shard(0)});
  auto pending = [&] { return from_local(whole, mesh, {Partial()}); };  // a new one each time: a settled value is kept
  auto mine = shards_of(rows)[0];
  auto sum = torch::empty({kSide, kSide}), part = torch::empty({kSide / n, kSide}), all = torch::empty({kSide, kSide});
  auto turned = torch::empty_like(mine);
  std::vector<int64_t> even;

  auto compare = [&](const char* what, const std::function<at::Tensor()>& ours,
                     const std::function<c10::intrusive_ptr<c10d::Work>()>& raw) {
    auto times = bench::medians_us({[&] { ours(); }, [&] { raw()->wait(); }}, 200);
    bench::print_ratio(what, times[0], times[1], "gloo");
  };
  compare(
      "4 MB S(0) -> R: all_gather", [&] { return redistribute(rows, {Replicate()}); },
      [&] { return gloo->_allgather_base(all, mine); });
  compare(
      "4 MB P(sum) -> R: all_reduce", [&] { return redistribute(pending(), {Replicate()}); },
      [&] {
        sum.copy_(whole);  // gloo's works in place, and redistribute leaves its input as it was
        std::vector<at::Tensor> one{sum};
        return gloo->allreduce(one);
      });
  compare(
      "4 MB P(sum) -> S(0): reduce_scatter", [&] { return redistribute(pending(), {Shard(0)}); },
      [&] { return gloo->_reduce_scatter_base(part, whole); });
  compare(
      "4 MB S(0) -> S(1): all_to_all", [&] { return redistribute(rows, {Shard(1)}); },
      [&] { return gloo->alltoall_base(turned, mine, even, even); });
}

// What it costs that a wrong word on one rank is an error on all.
void beside_local_errors(const DeviceMesh& mesh) {
  auto table = distribute_tensor(torch::rand({1000, 64}), mesh, {Replicate()});
  auto words = distribute_tensor(torch::randint(1000, {512}), mesh, {Shard(0)});
  auto look_up = [&] { torch::embedding(table, words); };
  auto times = bench::medians_us({look_up,
                                  [&] {
                                    LocalErrorScope local;
                                    look_up();
                                  }},
                                 500);
  bench::print_ratio("embedding of 512 cut words", times[0], times[1], "that with LocalErrorScope");
}

}  // namespace

int main(int argc, char** argv) {
  bench::start_as_ranks(argv, 2);
  at::set_num_threads(1);
  init();
  torch::NoGradGuard no_grad;
  auto mesh = init_device_mesh(torch::kCPU, {world_size()}, {"tp"});
  beside_gloo(mesh);
  beside_local_errors(mesh);

  auto square = distribute_tensor(torch::rand({512, 512}), mesh, {Shard(0)});
  auto peer = rank() || world_size() != 2 ? std::map<std::string, double>()
                                          : bench::read_values(
                                                "env -u RANK -u WORLD_SIZE -u LOCAL_RANK ${INTARSIA_PYTHON:-python3} "
                                                "benchmarks/peer_redistribute.py 2>/dev/null");
  barrier();
  for (auto& [name, goal] : std::map<std::string, Placement>{{"S0_R", Replicate()}, {"S0_S1", Shard(1)}}) {
    auto time = bench::median_us([&] { shards_of(redistribute(square, {goal}))[0].sum(); }, 200);
    bench::print_ratio("512x512 S(0) -> " + str(goal), time, peer[name], "torch.distributed.tensor");
  }
  finalize();
}
