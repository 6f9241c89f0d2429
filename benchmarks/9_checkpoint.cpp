// Saving and loading on four ranks beside dd, the stall of an asynchronous save beside a memcpy, memory beside the
// shard, and a tensor on its way from two ranks to four beside an all-to-all of the same bytes.
//
//   intarsia run -n 4 build/benchmarks/9_checkpoint [MB per rank]
//
// Started alone, it starts itself that way, with 512 MB per rank. Files go to TMPDIR, else /tmp. dd writes and reads
// files of the same sizes in the same run, with blocks of 256 kB, as we do, on all ranks at once; both sides sync what
// they write. torch.distributed.checkpoint (INTARSIA_PYTHON) saves and loads a tensor of the same size on as many
// ranks, and syncs too.

#include <torch/torch.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>

#include "benchmarks/processes.h"
#include "intarsia/comm/agreement.h"
#include "intarsia/comm/axis.h"
#include "intarsia/intarsia.h"

using namespace intarsia;

namespace {

std::string quoted(const std::string& text) { return "'" + text + "'"; }

void shell(const std::string& command) { TORCH_CHECK(std::system(command.c_str()) == 0, "failed: ", command); }

// The most memory of this process since the last reset, in MB.
void reset_peak() { std::ofstream("/proc/self/clear_refs") << 5; }
double status_mb(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kilobytes;
    if (word == field + ":" && status >> kilobytes) return kilobytes / 1e3;
  }
  return 0;
}

double seconds_of(const bench::Call& call) {
  barrier();
  auto start = bench::wall_us();
  call();
  barrier();
  return (bench::wall_us() - start) / 1e6;
}

// The best of several rounds, in which the calls take turns, so that noise falls on all alike.
std::vector<double> best_of(int rounds, const std::vector<bench::Call>& calls) {
  std::vector<double> best(calls.size(), 1e30);
  for (int i = 0; i < rounds; ++i) {
    for (size_t j = 0; j < calls.size(); ++j) best[j] = std::min(best[j], seconds_of(calls[j]));
  }
  return best;
}

void say(const char* what, double seconds, double reference, const char* beside) {
  if (rank()) return;
  std::printf("%-44s %8.3f s   %.2fx of %s (%.3f s)\n", what, seconds, seconds / reference, beside, reference);
  std::fflush(stdout);
}

// The most of all ranks.
void say_memory(const char* what, double mb, double shard) {
  auto& everyone = Axis::whole(init_device_mesh(torch::kCPU, {world_size()}));
  auto most = exchange_max(everyone, static_cast<int64_t>(mb * 1000)) / 1e3;
  if (rank() == 0) std::printf("%-44s %8.1f MB beside the shard of %.1f MB\n", what, most, shard), std::fflush(stdout);
}

// The files, the tensor and the sizes that all figures are about.
struct Case {
  std::string folder;
  int64_t megabytes;  // of each rank
  at::Tensor x;
  double shard() const { return megabytes * 1.048576; }
};

struct Times {
  double save, load;
};

Times beside_dd(const Case& c) {
  auto file = quoted(c.folder + "/dd-" + std::to_string(rank()));
  auto dd = [&](const std::string& words) { shell("dd " + words + " bs=256K 2>/dev/null"); };
  auto count = " count=" + std::to_string(c.megabytes * 4);
  auto save = [&] { checkpoint::save(c.folder + "/c", {{"x", c.x}}, {.quiet = true}); };
  auto written = best_of(4, {[&] { dd("if=/dev/zero of=" + file + " conv=fsync" + count); }, save});
  say("save", written[1], written[0], "dd");
  reset_peak();
  auto before = status_mb("VmRSS");
  auto load = [&] { checkpoint::load(c.folder + "/c", {{"x", c.x}}, {.quiet = true}); };
  auto shard = to_local(c.x);
  // What has to be done at the least: the bytes get to where they are wanted, and nobody looks at them.
  auto only_read = [&] {
    std::ifstream in(c.folder + "/dd-" + std::to_string(rank()), std::ios::binary);
    in.rdbuf()->pubsetbuf(nullptr, 0);
    auto* to = static_cast<char*>(shard.data_ptr());
    for (int64_t i = 0; i < c.megabytes; ++i) in.read(to + (i << 20), 1 << 20);
  };
  auto read = best_of(6, {[&] { dd("if=" + file + " of=/dev/null"); }, only_read, load});
  say("load", read[2], read[0], "dd to /dev/null");
  say("load", read[2], read[1], "read(2) into the shard, unchecked");
  say_memory("memory of a load", status_mb("VmHWM") - before, c.shard());
  return {written[1], read[2]};
}

// From rows to columns: every block of a file has something for every rank.
void beside_other_layouts(const Case& c, double load) {
  auto columns = empty(c.x.sizes(), mesh_of(c.x), {Shard(1)}, torch::kFloat);
  columns.fill_(0);
  reset_peak();
  auto before = status_mb("VmRSS");
  auto times = best_of(3, {[&] { checkpoint::load(c.folder + "/c", {{"x", columns}}, {.quiet = true}); }});
  say("load as [S(1)] what was saved as [S(0)]", times[0], load, "load as [S(0)]");
  say_memory("its memory", status_mb("VmHWM") - before, c.shard());
}

void beside_torch(const Case& c, Times ours) {
  auto peer =
      rank()
          ? std::map<std::string, double>()
          : bench::read_values(
                "env -u RANK -u WORLD_SIZE -u LOCAL_RANK ${INTARSIA_PYTHON:-python3} benchmarks/peer_checkpoint.py " +
                quoted(c.folder) + " " + std::to_string(world_size()) + " " + std::to_string(c.megabytes) +
                " 2>/dev/null");
  barrier();
  if (peer["save"] <= 0) return;
  say("save", ours.save, peer["save"] / 1e6, "torch.distributed.checkpoint");
  say("load", ours.load, peer["load"] / 1e6, "torch.distributed.checkpoint");
}

void stall(const Case& c) {
  auto shard = to_local(c.x);
  double memcpy_s = 0;
  {
    auto copy = shard.clone();
    memcpy_s = best_of(4, {[&] { std::memcpy(copy.data_ptr(), shard.data_ptr(), shard.nbytes()); }})[0];
  }
  auto save = [&] { return checkpoint::save_async(c.folder + "/a", {{"x", c.x}}, {.quiet = true}); };
  reset_peak();
  auto before = status_mb("VmRSS");
  std::optional<checkpoint::PendingSave> pending;
  auto first = seconds_of([&] { pending = save(); });
  pending->wait();
  double best = 1e30;
  for (int i = 0; i < 4; ++i) {
    best = std::min(best, seconds_of([&] { pending = save(); }));
    pending->wait();
  }
  say("stall of the first asynchronous save", first, memcpy_s, "memcpy");
  say("stall of every other one", best, memcpy_s, "memcpy");
  say_memory("memory of asynchronous saves", status_mb("VmHWM") - before, c.shard());
}

void mesh_to_mesh() {
  DeviceMesh two(torch::kCPU, {2}, {0, 1}), four(torch::kCPU, {4}, {0, 1, 2, 3});
  int64_t rows = 4096, columns = 4096;  // 64 MB of floats
  auto x = full({rows, columns}, 1, two, {Shard(0)}, torch::kFloat);
  auto& axis = Axis::whole(four);
  // What travels: rank 0 gives rank 1 a quarter, rank 1 gives ranks 2 and 3 a quarter each.
  auto quarter = rows * columns / 4;
  std::vector<std::vector<int64_t>> sends = {{0, quarter, 0, 0}, {0, 0, quarter, quarter}, {0, 0, 0, 0}, {0, 0, 0, 0}};
  std::vector<int64_t> receives(4, 0);
  for (int from = 0; from < 4; ++from) receives[from] = sends[from][rank()];
  auto total = [](const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  };
  auto send = torch::ones({total(sends[rank()])}), receive = torch::ones({total(receives)});
  auto exchange = [&](const at::Tensor& room) { axis.all_to_all({send}, {sends[rank()]}, {room}, {receives}); };
  // What a function that returns a new tensor cannot do without: memory, and on rank 0 a copy of the quarter that it
  // keeps.
  auto into_new = [&] {
    if (rank() == 0) to_local(x).narrow(0, 0, rows / 4).clone();
    exchange(torch::empty_like(receive));
  };
  auto times =
      bench::medians_us({[&] { redistribute(x, four, {Shard(0)}); }, [&] { exchange(receive); }, into_new}, 31);
  bench::print_ratio("64 MB from 2 to 4 ranks", times[0], times[1], "all_to_all of the same bytes");
  bench::print_ratio("64 MB from 2 to 4 ranks", times[0], times[2], "the same into new memory");
  CommDebugMode trace;
  redistribute(x, four, {Shard(0)});
  auto sent = torch::zeros({1}, torch::kLong);
  for (auto& event : trace.events()) sent += event.sent;
  auto all = axis.all_reduce({sent}, ReduceOp::sum)[0].item<int64_t>();
  if (rank() == 0)
    std::printf("%-44s %8.1f MB, of which %.1f MB must\n", "of these travel", all / 1e6, 3 * quarter * 4 / 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  bench::start_as_ranks(argv, 4);
  init();
  torch::set_num_threads(1);
  auto folder = (std::filesystem::temp_directory_path() / "intarsia-bench-checkpoint").string();
  std::filesystem::create_directories(folder);
  auto megabytes = argc > 1 ? std::atoll(argv[1]) : 512;
  auto mesh = init_device_mesh(torch::kCPU, {world_size()});
  {
    // Rows of 4096 floats: 16 kB.
    Case c{folder, megabytes, full({megabytes * 64 * world_size(), 4096}, 1, mesh, {Shard(0)}, torch::kFloat)};
    auto times = beside_dd(c);
    beside_other_layouts(c, times.load);
    beside_torch(c, times);
    stall(c);
  }
  barrier();
  if (rank() == 0) std::filesystem::remove_all(folder);
  if (world_size() == 4) mesh_to_mesh();
}
