// A training step of replicate and of fully_shard over two ranks, beside DDP and fully_shard of PyTorch, and beside
// c10d::Reducer, the C++ behind DDP.
//
//   build/benchmarks/8_data_parallel [mlp_10_16 | mlp_512_2048 | transformer]
//
// Wall time of forward, backward and an SGD step, best of several rounds in which all ways take turns. "Above" is what
// a step costs more than the same step of a rank that does not talk, each side beside its own. Memory is the peak above
// the start, in MiB, of a process of its own for each way: what is resident, and tensors by a counter.

#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <map>

#include "benchmarks/ddp.h"
#include "benchmarks/memory.h"
#include "benchmarks/processes.h"
#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "intarsia/data_parallel/replicate/replicate.h"
#include "intarsia/intarsia.h"
#include "intarsia/job/engines.h"

using namespace intarsia;

namespace {

namespace nn = torch::nn;

struct Workload {
  std::string name;
  std::function<nn::Sequential()> make;
  std::vector<int64_t> input;
  int rounds, steps;
};

nn::Sequential mlp(int64_t features, int64_t hidden) {
  return nn::Sequential(nn::Linear(features, hidden), nn::ReLU(), nn::Linear(hidden, features));
}

nn::Sequential transformer() {
  nn::Sequential model;
  for (int layer = 0; layer < 12; ++layer) {
    model->push_back(
        nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(256, 4).dim_feedforward(1024).dropout(0)));
  }
  return model;
}

const std::vector<Workload> kWorkloads = {{"mlp_10_16", [] { return mlp(10, 16); }, {12, 10}, 5, 200},
                                          {"mlp_512_2048", [] { return mlp(512, 2048); }, {64, 512}, 5, 20},
                                          {"transformer", transformer, {128, 4, 256}, 2, 6}};

// --- ways to train

using Forward = std::function<torch::Tensor(const torch::Tensor&)>;
using Wrap = std::function<Forward(nn::Sequential)>;  // the forward of a model that it has made parallel

Forward plain(nn::Sequential model) {
  return [model](auto& x) mutable { return model->forward(x); };
}

Forward by_c10d(nn::Sequential model, bool view) {
  static auto group = bench::gloo_group(static_cast<int>(rank()), static_cast<int>(world_size()));
  auto ddp = std::make_shared<bench::Ddp>(model->parameters(), group, view);
  return [model, ddp](auto& x) mutable {
    ddp->before_forward();
    auto out = model->forward(x);
    ddp->before_backward();
    return out;
  };
}

DeviceMesh mesh_over(const std::string& engine) {
  static std::map<std::string, DeviceMesh> meshes;
  auto& mesh = meshes[engine];
  if (mesh.defined()) return mesh;
  auto job = Job{rank(), world_size(), bench::store_of_job("bench/" + engine), "127.0.0.1", std::chrono::seconds(60)};
  WorldScope scope(*choose_engine(engine)(job).release());  // worlds live until the process ends
  return mesh = init_device_mesh(torch::kCPU, {world_size()}, {"dp"});
}

Forward replicated(nn::Sequential model, const std::string& engine, bool view) {
  ReplicateOptions options;
  options.gradient_as_bucket_view = view;
  replicate(*model, mesh_over(engine), options);
  return plain(model);
}

Forward sharded(nn::Sequential model, const std::string& engine, bool reshard) {
  FullyShardOptions options;
  options.reshard_after_forward = reshard;
  for (auto& child : model->children()) {
    if (!child->parameters().empty()) fully_shard(*child, mesh_over(engine), options);
  }
  return plain(model);
}

struct Way {
  std::string name, text, peer;
  Wrap wrap;
};

std::vector<Way> ways() {
  std::vector<Way> all = {
      {"compute", "compute alone", "compute", plain},
      {"c10d", "c10d::Reducer, gloo", "ddp", [](auto model) { return by_c10d(model, false); }},
      {"c10d_view", "c10d::Reducer, views, gloo", "ddp_view", [](auto model) { return by_c10d(model, true); }}};
  for (std::string engine : {"gloo", "shm"}) {
    auto add = [&](const char* name, const std::string& text, const char* peer, auto wrap, bool flag) {
      all.push_back({name + engine, text + ", " + engine, peer, [=](auto model) { return wrap(model, engine, flag); }});
    };
    add("replicate_", "replicate", "ddp", replicated, false);
    add("replicate_view_", "replicate, views", "ddp_view", replicated, true);
    add("shard_", "fully_shard", "fsdp", sharded, true);
    add("shard_kept_", "fully_shard, kept after forward", "fsdp_kept", sharded, false);
  }
  return all;
}

// --- a rank

double best_step_us(const Workload& workload, const Wrap& wrap, int steps) {
  torch::manual_seed(0);
  auto model = workload.make();
  auto forward = wrap(model);
  auto parameters = model->parameters();
  torch::optim::SGD optimizer(parameters, 0.01);
  torch::manual_seed(1 + rank());
  auto input = torch::rand(workload.input);
  double best = 1e30;
  for (int i = 0; i < steps; ++i) {
    barrier();
    auto start = bench::wall_us();
    for (auto& parameter : parameters)
      parameter.mutable_grad().reset();  // zero_grad refuses the views of c10d::Reducer
    forward(input).sum().backward();
    optimizer.step();
    if (i > 1) best = std::min(best, bench::wall_us() - start);
  }
  return best;
}

void say(const std::string& name, double value) {
  if (rank() == 0) printf("%s %.3f\n", name.c_str(), value), fflush(stdout);
}

void tell_times(const Workload& workload) {
  std::map<std::string, double> best;
  for (int round = 0; round < workload.rounds; ++round) {
    for (auto& way : ways()) {
      auto time = best_step_us(workload, way.wrap, workload.steps);
      best[way.name] = round ? std::min(best[way.name], time) : time;
    }
  }
  for (auto& [name, time] : best) say(name, time);
}

void tell_memory(const Workload& workload, const std::string& name) {
  for (auto& way : ways()) {
    if (way.name != name) continue;
    best_step_us(kWorkloads[0], way.wrap, 3);  // connects, and loads code
    bench::PeakResident resident;
    bench::PeakTensors tensors;
    best_step_us(workload, way.wrap, 4);
    say("resident", resident.mib());
    say("tensors", tensors.mib());
  }
}

// --- both sides

using Values = std::map<std::string, double>;

std::string in_quotes(const std::string& word) { return "'" + word + "'"; }

Values run_ranks(const std::string& self, const std::string& arguments) {
  auto launcher = self.substr(0, self.rfind("benchmarks")) + "bin/intarsia";
  return bench::read_values(in_quotes(launcher) + " run -n 2 --no-prefix " + in_quotes(self) + " " + arguments);
}

Values run_peer(const std::string& arguments) {
  return bench::read_values("${INTARSIA_PYTHON:-python3} benchmarks/peer_data_parallel.py " + arguments +
                            " 2>/dev/null");
}

void print(const Way& way, double time, double compute, double peer, double peer_compute) {
  printf("  %-38s %9.2f", way.text.c_str(), time / 1e3);
  if (way.name != "compute") printf(" %9.2f", (time - compute) / 1e3);
  if (way.name == "compute") printf(" %9s", "");
  if (peer > 0) printf(" %9.2f", peer / 1e3);
  if (peer > 0 && way.name != "compute") {
    printf(" %9.2f %8.2fx", (peer - peer_compute) / 1e3, (time - compute) / (peer - peer_compute));
  }
  printf("\n");
  fflush(stdout);
}

void compare_times(const std::string& self, const Workload& workload) {
  auto peer = run_peer("time " + workload.name), own = run_ranks(self, "time " + workload.name);
  printf("%s, ms a step\n  %-38s %9s %9s %9s %9s %9s\n", workload.name.c_str(), "", "step", "above", "PyTorch", "above",
         "ratio");
  for (auto& way : ways()) print(way, own[way.name], own["compute"], peer[way.peer], peer["compute"]);
}

void compare_memory(const std::string& self, const Workload& workload) {
  printf("%s, peak memory above the start, MiB\n  %-38s %9s %9s %9s\n", workload.name.c_str(), "", "resident",
         "tensors", "PyTorch");
  Values peer;
  for (auto& way : ways()) {
    if (!peer.count(way.peer)) peer[way.peer] = run_peer("memory " + workload.name + " " + way.peer)["resident"];
    auto own = run_ranks(self, "memory " + workload.name + " " + way.name);
    printf("  %-38s %9.1f %9.1f", way.text.c_str(), own["resident"], own["tensors"]);
    if (peer[way.peer] > 0) printf(" %9.1f", peer[way.peer]);
    printf("\n");
    fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  bool is_rank = std::getenv("WORLD_SIZE") != nullptr;
  if (is_rank) {
    at::set_num_threads(1);
    init();
  }
  for (auto& workload : kWorkloads) {
    if (!is_rank && (words.empty() || words[0] == workload.name)) {
      if (words.size() < 2 || words[1] == "time") compare_times(argv[0], workload);
      bool large = workload.name != "mlp_10_16";
      if (large && (words.size() < 2 || words[1] == "memory")) compare_memory(argv[0], workload);
    }
    if (is_rank && words.at(1) == workload.name)
      words[0] == "time" ? tell_times(workload) : tell_memory(workload, words.at(2));
  }
  if (is_rank) finalize();
}
