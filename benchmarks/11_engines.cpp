// The engines side by side: collectives of several sizes over shared memory, over gloo and, where it is there, over
// MPI, beside MPI's own collectives and memcpy.
//
//   intarsia run -n 2 build/benchmarks/11_engines [all_reduce [shm]]
//   mpirun -n 2 build/benchmarks/11_engines [all_reduce [mpi]]
//   INTARSIA_TEST_HOSTS=2 intarsia run -n 4 build/benchmarks/11_engines all_reduce auto,gloo    # two hosts of two
//   ranks intarsia run -n 2 build/benchmarks/11_engines recorder
//
// Started alone, it starts itself that way (by mpirun if there is one), with 2 ranks and then with 4. Wall time of the
// slowest rank, the best of many rounds, the engines in turn. GB/s are bytes of the tensor by that time; for
// all_gather, reduce_scatter and all_to_all bytes that one rank must receive from others, and behind "with own" those
// that it must write: with its own part. "recorder": what the fingerprint and the flight recorder take of a collective.

#include <sys/wait.h>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>

#include "benchmarks/processes.h"
#include "intarsia/comm/message_header.h"
#include "intarsia/intarsia.h"
#include "intarsia/job/engines.h"
#include "intarsia/watch/flight_recorder.h"

using namespace intarsia;

namespace {

std::vector<std::string> kEngines = {"shm", "gloo"};

#ifdef INTARSIA_MPIEXEC
const std::string kMpiexec = INTARSIA_MPIEXEC;
#else
const std::string kMpiexec;  // there is none
#endif

// The job's place to meet, which the children inherit.
void set_meeting() {
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(20000 + getpid() % 10000).c_str(), 1);
}

// As many ranks as asked for, whoever we are.
std::string mpirun(int ranks) {
  return "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
         "OMP_NUM_THREADS=1 '" +
         kMpiexec + "' -n " + std::to_string(ranks);
}

// Of the same collectives of MPI's own, in the folder of this program.
void print_raw(const std::string& self, int ranks, const std::string& only) {
  auto raw = bench::read_values(mpirun(ranks) + " '" + self.substr(0, self.rfind('/')) + "/raw_mpi' " + only);
  std::printf("\nMPI's own, %d ranks\n", ranks);
  for (std::string what : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"}) {
    std::map<long, double> by_size;
    for (auto& [name, us] : raw) {
      if (name.starts_with(what + "/")) by_size[std::stol(name.substr(what.size() + 1))] = us;
    }
    for (auto& [bytes, us] : by_size) std::printf("%-15s %9ld B   raw mpi %9.2f us\n", what.c_str(), bytes, us);
  }
}

std::unique_ptr<Engine> make(const std::string& name) {
  c10d::TCPStoreOptions options;
  options.port = std::stoi(std::getenv("MASTER_PORT"));
  options.waitWorkers = false;
  auto store = c10::make_intrusive<c10d::TCPStore>(std::getenv("MASTER_ADDR"), options);
  return choose_engine(name)({rank(), world_size(), c10::make_intrusive<c10d::PrefixStore>("bench/" + name, store),
                              "127.0.0.1", std::chrono::seconds(60)});
}

Line line_of_all() {
  Line line{"x", world_size(), {{}}, {rank()}};
  for (int64_t r = 0; r < world_size(); ++r) line.ranks[0].push_back(r);
  return line;
}

// The buffers of one size, and the collectives on them.
struct Case {
  Line line = line_of_all();
  int64_t n = world_size(), count;  // floats
  at::Tensor whole, result, part;
  Counts even;

  explicit Case(int64_t bytes) : count(std::max<int64_t>(bytes / 4 / n, 1)) {
    whole = torch::ones({count * n});
    result = torch::empty({count * n});
    part = torch::ones({count});
    even = {std::vector<int64_t>(n, count)};
  }
  int64_t bytes() const { return count * n * 4; }

  Wait run(const Engine& engine, const std::string& what) const {
    if (what == "all_reduce") return engine.all_reduce(line, {whole}, {result}, ReduceOp::sum, false);
    if (what == "all_gather") return engine.all_gather(line, {part}, {result}, even);
    if (what == "reduce_scatter") return engine.reduce_scatter(line, {whole}, even, {part}, ReduceOp::sum);
    if (what == "all_to_all") return engine.all_to_all(line, {whole}, even, {result}, even);
    return engine.broadcast(line, {whole}, 0);
  }
  // What must come to a rank.
  double moved(const std::string& what) const {
    return what == "all_reduce" || what == "broadcast" ? bytes() : double(bytes()) * (n - 1) / n;
  }
  bool has_own(const std::string& what) const { return what == "all_gather" || what == "all_to_all"; }
};

int calls_of(const Case& one) { return std::max<int64_t>(1, std::min<int64_t>(50, (4 << 20) / one.bytes())); }

// Microseconds of the slowest rank in one round.
double round_us(const Engine& clock, const Engine& engine, const Case& one, const std::string& what) {
  int calls = calls_of(one);
  clock.barrier();
  auto start = bench::wall_us();
  for (int i = 0; i < calls; ++i) {
    if (auto wait = one.run(engine, what)) wait();
  }
  auto mine = torch::tensor({(bench::wall_us() - start) / calls}, torch::kDouble), most = torch::empty_like(mine);
  clock.all_reduce(one.line, {mine}, {most}, ReduceOp::max, false);
  return most.item<double>();
}

double memcpy_rate(int64_t bytes) {
  std::vector<char> from(bytes, 1), to(bytes);
  double best = 1e30;
  for (int i = 0; i < 20; ++i) {
    auto start = bench::wall_us();
    std::memcpy(to.data(), from.data(), bytes);
    best = std::min(best, bench::wall_us() - start);
  }
  return bytes / best * 1e-3;
}

// Of 100 rounds, or of as many as take two seconds; all ranks see the same times.
std::vector<double> best_of_rounds(const std::vector<std::unique_ptr<Engine>>& engines, const Case& one,
                                   const std::string& what) {
  constexpr double kMost = 2e6;
  std::vector<double> best(engines.size(), 1e30);
  double spent = 0;
  for (int round = 0; round < 5 || (round < 100 && spent < kMost); ++round) {
    for (size_t e = 0; e < engines.size(); ++e) {
      auto us = round_us(*engines[0], *engines[e], one, what);
      best[e] = std::min(best[e], us);
      spent += us * calls_of(one);
    }
  }
  return best;
}

void compare(const std::vector<std::unique_ptr<Engine>>& engines, const std::string& only) {
  auto say = [](const std::string& text) {
    if (rank() == 0) std::fputs(text.c_str(), stdout), std::fflush(stdout);
  };
  say(c10::str("\n", world_size(), " ranks\n"));
  for (std::string what : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"}) {
    if (!only.empty() && only != what) continue;
    for (int64_t bytes : {8 << 0, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20}) {
      Case one(bytes);
      auto best = best_of_rounds(engines, one, what);
      char text[200];
      std::snprintf(text, sizeof text, "%-15s %9lld B", what.c_str(), static_cast<long long>(one.bytes()));
      std::string line = text;
      for (size_t e = 0; e < engines.size(); ++e) {
        auto rate = one.moved(what) / best[e] * 1e-3;
        std::snprintf(text, sizeof text, "   %s %9.2f us %6.2f GB/s", kEngines[e].c_str(), best[e], rate);
        line += text;
        if (one.has_own(what))
          std::snprintf(text, sizeof text, ", with own %6.2f", one.bytes() / best[e] * 1e-3), line += text;
      }
      say(line + "\n");
    }
  }
  if (rank() == 0)
    std::printf("memcpy: 1 MB %.1f GB/s, 64 MB %.1f GB/s\n", memcpy_rate(1 << 20), memcpy_rate(64 << 20));
}

std::vector<std::string> names_in(const std::string& list) {
  std::vector<std::string> names;
  std::istringstream in(list);
  for (std::string name; std::getline(in, name, ',');) names.push_back(name);
  return names;
}

// What a collective does to know what it is and to be remembered, beside the smallest collective and a call that needs
// one.
void time_recorder(const Engine& shm) {
  Case one(8);
  auto* flights = recorded_line(rank(), one.line.ranks[0], "shm");
  History history;
  MessageHeader header;
  auto record = bench::time_us([&] {
    auto call = collective_of(Collective::all_reduce, one.line, one.whole, ReduceOp::sum);
    begin_entry(flights, call, true);
    history.add(call);
    header.describe(call);
    end_entry(call);
  });
  auto collective = 1e30;
  for (int round = 0; round < 100; ++round) collective = std::min(collective, round_us(shm, shm, one, "all_reduce"));
  auto mesh = init_device_mesh(torch::kCPU, {world_size()}, {"tp"});
  auto left = distribute_tensor(torch::ones({4, 4 * world_size()}), mesh, {Shard(1)});
  auto right = distribute_tensor(torch::ones({4 * world_size(), 4}), mesh, {Shard(0)});
  auto call = [&] { redistribute(torch::mm(left, right), {Replicate()}); };
  auto op = bench::medians_us({call}, 2000)[0];
  if (rank() == 0) {
    std::printf(
        "fingerprint and recorder %.3f us: %.1f %% of an all_reduce of 8 B (%.2f us), %.1f %% of a call with an "
        "all_reduce (%.2f us)\n",
        record, 100 * record / collective, collective, 100 * record / op, op);
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool by_mpi = std::getenv("OMPI_COMM_WORLD_SIZE") || std::getenv("PMI_SIZE");
  if (!std::getenv("WORLD_SIZE") && !by_mpi) {
    for (int ranks : {2, 4}) {
      if (!kMpiexec.empty()) {
        set_meeting();
        if (std::system((mpirun(ranks) + " '" + argv[0] + "' " + (argc > 1 ? argv[1] : "")).c_str())) return 1;
        print_raw(argv[0], ranks, argc > 1 ? argv[1] : "");
        continue;
      }
      auto child = fork();
      if (child == 0) bench::start_as_ranks(argv, ranks);
      int status = 0;
      waitpid(child, &status, 0);
      if (status) return 1;
    }
    return 0;
  }
  at::set_num_threads(1);
  init();
  if (by_mpi) kEngines.push_back("mpi");
  if (argc > 2) kEngines = names_in(argv[2]);
  std::vector<std::unique_ptr<Engine>> engines;
  for (auto& name : kEngines) engines.push_back(make(name));
  std::string what = argc > 1 ? argv[1] : "";
  what == "recorder" ? time_recorder(*engines[0]) : compare(engines, what);
  barrier();
}
