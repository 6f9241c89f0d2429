// A Llama-style transformer with its parameters, gradients and optimizer states in shards, on a 2x2 mesh: tensor and
// sequence parallelism over "tp", fully_shard over "dp". The model (llama.h) is plain torch::nn; one rank trains beside
// it.
//
// Run it by itself, and this process plays four ranks:
//   build/examples/7_fully_sharded
// or as four processes:
//   intarsia run -n 4 build/examples/7_fully_sharded
//
// It prints the groups, how much of the parameters a rank keeps, the loss of every step beside that of one rank, and
// what was sent in the last step. It ends with an error if a loss differs by more than 1e-5.
#include <cmath>
#include <cstdio>
#include <iostream>
#include <optional>

#include "examples/llama.h"

using namespace intarsia;

namespace {

constexpr int kSteps = 10;
constexpr int64_t kBatch = 4, kLength = 16;

void shard(llama::Model& model, const llama::Options& options, const DeviceMesh& mesh) {
  parallelize_module(model, mesh["tp"], llama::plan(options));
  for (auto& layer : *model->layers) fully_shard(*layer, mesh["dp"]);
  fully_shard(*model, mesh["dp"]);  // the parameters that are left
}

}  // namespace

int main() {
  init();  // joins the ranks that a launcher started; alone, a world of one
  std::optional<Simulation> simulation;
  if (current_world().size() == 1) simulation.emplace(4);
  TORCH_CHECK(current_world().size() == 4, "run it alone, or as 4 processes");
  auto mesh = init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
  bool speaks = current_world().hosted()[0] == 0;  // one of the ranks speaks for all

  llama::Options options;
  torch::manual_seed(1);
  llama::Model alone(options);
  torch::manual_seed(1);  // the same first weights
  llama::Model model(options);
  torch::optim::AdamW optimizer_alone(alone->parameters(), 0.01), optimizer(model->parameters(), 0.01);
  auto whole = llama::bytes_held(model);
  shard(model, options, mesh);  // in place: the optimizer sees it
  if (speaks) {
    std::cout << describe(*model) << "a rank keeps " << llama::bytes_held(model) << " of " << whole << " bytes\n"
              << std::endl;
  }

  torch::manual_seed(2);
  auto text = torch::randint(options.vocabulary, {kBatch, kLength + 1});
  auto tokens = text.narrow(1, 0, kLength), target = text.narrow(1, 1, kLength);
  auto mine = [&](const torch::Tensor& t) { return to_local(distribute_tensor(t, mesh["dp"], {Shard(0)})); };
  auto own_target = from_local(mine(target), mesh["tp"], {Replicate()});
  bool same = true;
  std::string table;
  for (int step = 0; step < kSteps; ++step) {
    std::optional<CommDebugMode> comms;
    if (step == kSteps - 1) comms.emplace();
    optimizer.zero_grad();
    auto result = llama::loss(model(mine(tokens)), own_target);
    result.backward();
    optimizer.step();
    if (comms) table = comms->table();
    comms.reset();
    auto local = to_local(redistribute(result.detach(), {Replicate()}));
    auto loss = full_tensor(from_local(local, mesh["dp"], {Partial(ReduceOp::avg)})).item<double>();
    optimizer_alone.zero_grad();
    auto expected = llama::loss(alone(tokens), target);
    expected.backward();
    optimizer_alone.step();
    bool agree = std::abs(loss - expected.item<double>()) <= 1e-5;
    same = same && agree;
    if (speaks) std::printf("%4d  %16.9f  %11.9f%s\n", step, loss, expected.item<double>(), agree ? "" : "  DIFFERS");
  }
  if (speaks) {
    std::fflush(stdout);
    std::cout << "\nWhat a rank sent or received in the last step:\n"
              << table << "\n"
              << (same ? "every loss is that of one rank to 1e-5" : "A LOSS DIFFERS") << std::endl;
  }
  return same ? 0 : 1;
}
