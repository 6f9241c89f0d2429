// Trains a Llama-style transformer cut over four ranks by tensor and sequence parallelism. The model (llama.h) is plain
// torch::nn, the optimizer plain torch::optim; the same training on one rank runs beside it.
//
// Run it by itself, and this process plays all four ranks:
//   build/examples/4_llama           or, with one table for both ends of the vocabulary:  build/examples/4_llama tied
// or as four processes:
//   intarsia run -n 4 build/examples/4_llama
//
// It first explains a step without running it, then prints the loss of every step beside the loss of the same step on
// one rank, and what each module sent in the last step. It ends with an error if two losses differ by more than 1e-5,
// or if anything was sent but what theory asks for and explain said.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <optional>

#include "examples/llama.h"

using namespace intarsia;

namespace {

constexpr int kSteps = 20;
constexpr int64_t kBatch = 2, kLength = 16;

torch::Tensor train_step(llama::Model& model, torch::optim::Optimizer& optimizer, const torch::Tensor& tokens,
                         const torch::Tensor& target) {
  optimizer.zero_grad();
  auto loss = llama::loss(model(tokens), target);
  loss.backward();
  optimizer.step();
  return loss.detach();
}

// Per block and pass: attention and MLP each gather their sequence and scatter their sum. The gradient of a gather is a
// reduce-scatter and the reverse, so backward is forward read from the end. All move the same bytes: the activations
// [batch, length, width] less the part that a rank has already.
std::string theory(const llama::Options& options, int64_t ranks) {
  auto bytes = std::to_string(kBatch * kLength * options.width * 4 * (ranks - 1) / ranks) + "B\n";
  auto gather = "all_gather tp " + bytes, scatter = "reduce_scatter(sum) tp " + bytes;
  return gather + scatter + gather + scatter;
}

// What each block sent is what theory asks for, and all together what explain said.
bool as_foreseen(const ModuleTrace& trace, const llama::Options& options, int64_t ranks, const StepExplanation& story) {
  auto forward = theory(options, ranks);
  bool same = trace.entries().size() == story.collectives.size();
  for (size_t i = 0; same && i < story.collectives.size(); ++i) {
    same = str(trace.entries()[i].event) == str(story.collectives[i].event);
  }
  for (int64_t i = 0; i < options.layers; ++i) {
    auto block = "layers." + std::to_string(i);
    same = same && trace.text(block, Phase::forward) == forward && trace.text(block, Phase::backward) == forward;
  }
  return same;
}

}  // namespace

int main(int argc, char** argv) {
  init();  // joins the ranks that a launcher started; alone, a world of one
  std::optional<Simulation> simulation;
  if (current_world().size() == 1) simulation.emplace(4);
  auto ranks = current_world().size();
  auto mesh = init_device_mesh(torch::kCPU, {ranks}, {"tp"});
  bool speaks = current_world().hosted()[0] == 0;  // one of the ranks speaks for all
  llama::Options options;
  options.tied = argc > 1 && std::strcmp(argv[1], "tied") == 0;

  torch::manual_seed(1);
  llama::Model alone(options);
  torch::manual_seed(1);  // the same first weights
  llama::Model model(options);
  torch::optim::AdamW optimizer_alone(alone->parameters(), 0.01);
  torch::optim::AdamW optimizer(model->parameters(), 0.01);
  torch::manual_seed(2);
  auto text = torch::randint(options.vocabulary, {kBatch, kLength + 1});
  auto tokens = text.narrow(1, 0, kLength), target = text.narrow(1, 1, kLength);

  Imagined plain{{kBatch, kLength}, {}, torch::kLong}, on_every_rank{{kBatch, kLength}, {Replicate()}, torch::kLong};
  auto story = explain(*model, mesh, llama::plan(options), {plain, on_every_rank},
                       [&](auto& in) { return llama::loss(model(in[0]), in[1]); });
  if (speaks) std::cout << story.text() << "\nstep  loss on the mesh  on one rank" << std::endl;

  parallelize_module(model, mesh, llama::plan(options));  // in place: the optimizer sees it
  auto distributed_target = distribute_tensor(target, mesh, {Replicate()});
  bool same = true, lean = false;
  std::string table;
  for (int step = 0; step < kSteps; ++step) {
    std::optional<ModuleTrace> trace;
    if (step == kSteps - 1) trace.emplace(*model);
    auto result = train_step(model, optimizer, tokens, distributed_target);
    if (trace) table = trace->table(), lean = as_foreseen(*trace, options, ranks, story);
    trace.reset();  // reading the loss sends, too
    auto loss = result.item<double>(), expected = train_step(alone, optimizer_alone, tokens, target).item<double>();
    bool agree = std::abs(loss - expected) <= 1e-5;
    same = same && agree;
    if (speaks) std::printf("%4d  %16.9f  %11.9f%s\n", step, loss, expected, agree ? "" : "  DIFFERS");
  }
  if (speaks) {
    std::fflush(stdout);
    std::cout << "\nWhat a rank sent or received in the last step:\n"
              << table << "\n"
              << (same ? "every loss is that of one rank to 1e-5\n" : "A LOSS DIFFERS\n")
              << (lean ? "every block sent what theory asks for, as explain said" : "SOMETHING ELSE WAS SENT")
              << std::endl;
  }
  return same && lean ? 0 : 1;
}
