// Saving and loading on four ranks beside dd, the stall of an asynchronous save beside a memcpy, memory beside the shard, and a
// tensor on its way from two ranks to four beside an all-to-all of the same bytes.
//
//   intarsia run -n 4 build/benchmarks/9_checkpoint [MB per rank]
//
// Started alone, it starts itself that way, with 512 MB per rank. Files go to TMPDIR, else /tmp. dd writes and reads files of the
// same sizes in the same run, with blocks of 1 MiB, on all ranks at once; both sides sync what they write.
// torch.distributed.checkpoint (INTARSIA_PYTHON) saves and loads a tensor of the same size on as many ranks, and syncs too.

#include <torch/torch.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>

#include "benchmarks/processes.h"
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

double best_of(int rounds, const bench::Call& call) {
  double best = 1e30;
  for (int i = 0; i < rounds; ++i) best = std::min(best, seconds_of(call));
  return best;
}

void say(const char* what, double seconds, double reference, const char* beside) {
  if (rank() == 0)
    std::printf("%-40s %8.3f s   %.2fx of %s (%.3f s)\n", what, seconds, seconds / reference, beside, reference),
        std::fflush(stdout);
}

void save_and_load(const std::string& folder, int64_t megabytes) {
  auto ranks = world_size();
  auto mesh = init_device_mesh(torch::kCPU, {ranks});
  auto rows = megabytes * 64;  // of 4096 floats, 16 kB
  auto x = full({rows * ranks, 4096}, 1, mesh, {Shard(0)}, torch::kFloat);
  auto dd_file = quoted(folder + "/dd-" + std::to_string(rank()));
  auto count = std::to_string(megabytes);
  auto quiet = " 2>/dev/null";
  auto dd_write = best_of(3, [&] { shell("dd if=/dev/zero of=" + dd_file + " bs=1M conv=fsync count=" + count + quiet); });
  auto write = best_of(3, [&] { checkpoint::save(folder + "/c", {{"x", x}}, {.quiet = true}); });
  say("save", write, dd_write, "dd");
  auto dd_read = best_of(3, [&] { shell("dd if=" + dd_file + " of=/dev/null bs=1M" + quiet); });
  reset_peak();
  auto before = status_mb("VmRSS");
  auto read = best_of(3, [&] { checkpoint::load(folder + "/c", {{"x", x}}, {.quiet = true}); });
  say("load", read, dd_read, "dd");
  if (rank() == 0) std::printf("%-40s %8.1f MB beside the shard\n", "memory of a load", status_mb("VmHWM") - before);
  auto peer = rank() ? std::map<std::string, double>()
                     : bench::read_values(
                           "env -u RANK -u WORLD_SIZE -u LOCAL_RANK ${INTARSIA_PYTHON:-python3} benchmarks/peer_checkpoint.py " +
                           quoted(folder) + " " + std::to_string(ranks) + " " + std::to_string(megabytes) + " 2>/dev/null");
  barrier();
  if (peer["save"] > 0) {
    say("save", write, peer["save"] / 1e6, "torch.distributed.checkpoint");
    say("load", read, peer["load"] / 1e6, "torch.distributed.checkpoint");
  }

  auto shard = to_local(x), copy = torch::empty_like(shard);
  copy.copy_(shard);
  auto memcpy_s = best_of(3, [&] { std::memcpy(copy.data_ptr(), shard.data_ptr(), shard.nbytes()); });
  checkpoint::save_async(folder + "/a", {{"x", x}}, {.quiet = true}).wait();  // has its memory from now on
  double stall = 1e30;
  for (int i = 0; i < 3; ++i) {
    std::optional<checkpoint::PendingSave> pending;
    stall = std::min(stall, seconds_of([&] { pending = checkpoint::save_async(folder + "/a", {{"x", x}}, {.quiet = true}); }));
    pending->wait();
  }
  say("stall of an asynchronous save", stall, memcpy_s, "memcpy");
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
  auto total = [](const std::vector<int64_t>& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); };
  auto send = torch::ones({total(sends[rank()])}), receive = torch::ones({total(receives)});
  auto times = bench::medians_us(
      {[&] { redistribute(x, four, {Shard(0)}); }, [&] { axis.all_to_all({send}, {sends[rank()]}, {receive}, {receives}); }}, 15);
  bench::print_ratio("64 MB from 2 to 4 ranks", times[0], times[1], "all_to_all of the same bytes");
}

}  // namespace

int main(int argc, char** argv) {
  bench::start_as_ranks(argv, 4);
  init();
  torch::set_num_threads(1);
  auto folder = (std::filesystem::temp_directory_path() / "intarsia-bench-checkpoint").string();
  std::filesystem::create_directories(folder);
  save_and_load(folder, argc > 1 ? std::atoll(argv[1]) : 512);
  barrier();
  if (rank() == 0) std::filesystem::remove_all(folder);
  if (world_size() == 4) mesh_to_mesh();
}
