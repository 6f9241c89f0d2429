#include "tests/processes/plays.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <thread>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "intarsia/checkpoint/save.h"
#include "intarsia/comm/axis.h"
#include "intarsia/comm/trace.h"
#include "intarsia/job/from_group.h"
#include "intarsia/job/init.h"
#include "intarsia/random/local_random_scope.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/transport/gloo/gloo_process_groups.h"
#include "tests/processes/checkpoint_plays.h"
#include "tests/processes/divergences.h"
#include "tests/processes/flight_plays.h"
#include "tests/processes/mismatches.h"
#include "tests/processes/optimizer_plays.h"
#include "tests/processes/training_plays.h"

namespace intarsia {
namespace {

const Axis& whole_axis() { return Axis::of(init_device_mesh(at::kCPU, {world_size()}, {"tp"}), 0); }

void sum_of_ranks() {
  init();
  auto sum = whole_axis().all_reduce({at::full({1}, double(rank() + 1))}, ReduceOp::sum);
  std::printf("rank %d of %d, local %d: the sum is %g\n", int(rank()), int(world_size()), int(local_rank()),
              sum[0].item<double>());
}

// The scope comes before any distributed tensor.
void draw_first() {
  init();
  LocalRandomScope scope(init_device_mesh(at::kCPU, {world_size()}, {"dp"}));
  std::printf("%d rows\n", int(at::dropout(at::ones({4, 3}), 0.5, true).size(0)));
}

// What a program does that forgot init().
void forget_to_join() { std::printf("a mesh of %d\n", int(init_device_mesh(at::kCPU, {world_size()}, {"tp"}).size())); }

// Works until `strike` happens to rank 1 in the middle of it, of which rank 0 may take note late.
void reduce_until(const std::function<void()>& strike, int64_t numel, std::chrono::seconds late = {}) {
  init();
  auto& axis = whole_axis();
  CauseScope cause("aten::mm", true);
  for (int step = 0; step < 1000; ++step) {
    if (step == 5) {
      std::printf("step 5 reached\n");
      std::fflush(stdout);
      if (rank() == 1) strike();
      if (rank() == 0) std::this_thread::sleep_for(late);
    }
    axis.all_reduce({at::ones({numel})}, ReduceOp::sum);
  }
}

// Some seconds of small steps, so that something can happen in between.
void reduce_slowly() {
  init();
  for (int step = 0; step < 150; ++step) {
    whole_axis().all_reduce({at::ones({1000})}, ReduceOp::sum);
    if (step == 5) std::printf("step 5 reached\n"), std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// Collectives of all kinds and sizes until someone ends it.
void work_on() {
  init();
  auto& axis = whole_axis();
  auto n = world_size();
  axis.all_reduce({at::ones({1})}, ReduceOp::sum);
  std::printf("at work\n");
  std::fflush(stdout);
  for (int64_t step = 0;; ++step) {
    int64_t count = step % 3 == 0 ? 1 : step % 3 == 1 ? 5000 : 400000;
    Counts counts{std::vector<int64_t>(n, count)};
    axis.all_reduce({at::ones({count})}, ReduceOp::sum);
    auto all = at::empty({count * n});
    Wait wait;
    axis.all_gather({at::ones({count})}, {all}, counts, &wait);
    axis.all_to_all({all.clone()}, counts, {at::empty({count * n})}, counts);
    if (wait) wait();
    axis.reduce_scatter({at::ones({count * n})}, counts, ReduceOp::sum);
  }
}

// Connects the ranks as lines of every order, one behind the other, and goes on with the last.
void connect_on() {
  init();
  auto& engine = engine_of(current_world());
  Line line{"x", world_size(), {std::vector<int64_t>(world_size())}, {rank()}};
  auto& order = line.ranks[0];
  std::iota(order.begin(), order.end(), 0);
  std::printf("at work\n");
  std::fflush(stdout);
  auto reduce = [&] { engine.all_reduce(line, {at::ones({1})}, {at::empty({1})}, ReduceOp::sum, false); };
  do reduce();
  while (std::next_permutation(order.begin(), order.end()));
  while (true) reduce();
}

// What carries the lines of a mesh of 2 hosts x their ranks.
void carriers() {
  init();
  auto mesh = init_device_mesh(at::kCPU, {2, world_size() / 2}, {"host", "local"});
  for (auto* axis : {&Axis::of(mesh, 0), &Axis::of(mesh, 1), &Axis::whole(mesh)}) {
    axis->all_reduce({at::ones({4})}, ReduceOp::sum);
    auto name = axis == &Axis::whole(mesh) ? "all" : axis->name().c_str();
    std::printf("%s %s\n", name, engine_of(current_world()).carrier(axis->line()).c_str());
  }
}

// The error comes when the result is waited for.
void kill_then_wait() {
  init();
  auto& axis = whole_axis();
  auto all = at::empty({world_size()});
  Counts counts{std::vector<int64_t>(world_size(), 1)};
  axis.all_gather({at::ones({1})}, {all}, counts);
  if (rank() == 1) raise(SIGKILL);
  Wait wait;
  axis.all_gather({at::ones({1})}, {all}, counts, &wait);
  std::printf("under way\n");
  wait();
}

// What all ranks must call, called by rank 0 alone. The others end well.
void alone(const std::function<void(const at::Tensor&)>& call) {
  init();
  auto mesh = init_device_mesh(at::kCPU, {world_size()}, {"tp"});
  auto pending = from_local(at::ones({}), mesh, {Partial()});
  full_tensor(pending);
  if (rank() == 0) call(pending * 2);
}

// All ranks make the norm, and rank 0 alone reads it.
void norm_read_alone() {
  init();
  auto mesh = init_device_mesh(at::kCPU, {world_size()}, {"tp"});
  auto rows = from_local(at::ones({2, 3}), mesh, {Shard(0)});
  full_tensor(rows);  // the ranks have met
  auto norm = rows.norm();
  if (rank() == 0) norm.item<double>();
}

void rank_one_uses_other_code() {
  init();
  if (rank() != 1) whole_axis().all_reduce({at::ones({4})}, ReduceOp::sum);
  sleep(60);
}

// Rank 1 ends well, while the others go on.
void an_early_end() {
  init();
  for (int step = 0; step < (rank() == 1 ? 3 : 4); ++step) whole_axis().all_reduce({at::ones({4})}, ReduceOp::sum);
}

void a_group_without_rank_zero() {
  init();
  if (rank() == 0) return;  // it may serve the store, which the others still need
  sleep(1);
  std::vector<int64_t> others;
  for (int64_t r = 1; r < world_size(); ++r) others.push_back(r);
  DeviceMesh mesh(at::kCPU, {world_size() - 1}, others, {"rest"});
  auto sum = Axis::of(mesh, 0).all_reduce({at::ones({1})}, ReduceOp::sum);
  std::printf("the others count %g\n", sum[0].item<double>());
}

void twice() {
  for (int i = 0; i < 2; ++i) {
    sum_of_ranks();
    auto& before = current_world();
    if (&init() != &before) std::printf("another world\n");
    finalize();
    if (process_world()) std::printf("not left\n");
  }
}

c10::intrusive_ptr<c10d::Store> store_of_the_user() {
  c10d::TCPStoreOptions options;
  options.port = std::stoi(getenv("MASTER_PORT"));
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>(getenv("MASTER_ADDR"), options);
}

void print_sum(const DeviceMesh& mesh) {
  auto sum = Axis::of(mesh, 0).all_reduce({at::full({1}, double(rank() + 1))}, ReduceOp::sum);
  std::printf("rank %d of %d: %s sums to %g\n", int(rank()), int(world_size()), str(mesh).c_str(),
              sum[0].item<double>());
}

void over_a_store() {
  auto me = std::stoi(getenv("RANK")), n = std::stoi(getenv("WORLD_SIZE"));
  init_from(store_of_the_user(), me, n);
  print_sum(init_device_mesh(at::kCPU, {n}, {"x"}));
}

// What a Python program has after torch.distributed.init_process_group("gloo").
c10::intrusive_ptr<c10d::ProcessGroup> group_of_the_user() {
  auto me = std::stoi(getenv("RANK")), n = std::stoi(getenv("WORLD_SIZE"));
  auto store = store_of_the_user();
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, me, n);
  GlooMaker gloo("lo", std::chrono::seconds(20));
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                    gloo.make(c10::make_intrusive<c10d::PrefixStore>("user", store), me, n));
  return group;
}

void over_a_group() {
  auto mesh = mesh_from_group(group_of_the_user(), at::kCPU, "x");  // there is no world yet
  print_sum(mesh);
  DeviceMesh pair(at::kCPU, {2}, {2, 0}, {"pair"});
  if (!pair.slots().empty()) print_sum(pair);
}

// What carries the bytes, as the trace and errors tell it.
void name_the_carrier() {
  init();
  auto& axis = whole_axis();
  axis.all_reduce({at::ones({1})}, ReduceOp::sum);
  std::printf("rank %d: %s, over %s\n", int(rank()), current_world().text().c_str(),
              engine_of(current_world()).carrier(axis.line()).c_str());
}

const std::map<std::string, std::function<void()>> kPlays = {
    {"carrier", name_the_carrier},
    {"sum", sum_of_ranks},
    {"draw_first", draw_first},
    {"forget_to_join", forget_to_join},
    {"kill", [] { reduce_until([] { raise(SIGKILL); }, 1000); }},
    {"kill_large", [] { reduce_until([] { raise(SIGKILL); }, 3000000); }},
    {"kill_unseen", [] { reduce_until([] { raise(SIGKILL); }, 1000, std::chrono::seconds(1)); }},
    {"stop", [] { reduce_until([] { raise(SIGSTOP); }, 1000); }},
    {"stop_large", [] { reduce_until([] { raise(SIGSTOP); }, 3000000); }},
    {"exit", [] { reduce_until([] { exit(7); }, 1000); }},
    {"uncaught", [] { reduce_until([] { abort(); }, 1000); }},
    {"kill_then_wait", kill_then_wait},
    {"early_end", an_early_end},
    {"reduce_slowly", reduce_slowly},
    {"carriers", carriers},
    {"work_on", work_on},
    {"connect_on", connect_on},
    {"other_code", rank_one_uses_other_code},
    {"item_alone", [] { alone([](auto& x) { x.template item<double>(); }); }},
    {"norm_alone", norm_read_alone},
    {"barrier_alone", [] { alone([](auto&) { barrier(); }); }},
    {"save_alone",
     [] { alone([](auto& x) { checkpoint::save(c10::str("/tmp/intarsia-alone-", getppid()), {{"x", x}}); }); }},
    {"without_rank_zero", a_group_without_rank_zero},
    {"mismatches", play_mismatches},
    {"divergences", play_divergences},
    {"allowed_differences", play_allowed_differences},
    {"flights", play_flights},
    {"one_mismatch", play_one_mismatch},
    {"one_waits", play_one_waits},
    {"replicated_training", play_replicated_training},
    {"sharded_training", play_sharded_training},
    {"twice", twice},
    {"over_a_store", over_a_store},
    {"over_a_group", over_a_group},
    {"saves", play_saves},
    {"save_once", play_save_once},
    {"check", play_check},
    {"train_on", play_train_on},
};

}  // namespace

int play(const std::string& name) {
  auto found = kPlays.find(name);
  if (found == kPlays.end()) return std::fprintf(stderr, "there is no play %s\n", name.c_str()), 2;
  try {
    found->second();
  } catch (const std::exception& error) {
    auto* ours = dynamic_cast<const c10::Error*>(&error);
    std::fprintf(stderr, "error: %s\n", ours ? ours->what_without_backtrace() : error.what());
    return 3;
  }
  return 0;
}

}  // namespace intarsia
