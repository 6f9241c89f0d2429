// A Llama-style transformer that is born in parts: each rank makes a quarter of every parameter, and no rank ever holds
// a whole one. The numbers are those of the model made plainly after the same seed, so it trains as that one does.
//
// Run it by itself, and this process plays four ranks:
//   build/examples/8_born_sharded
// or as four processes:
//   intarsia run -n 4 build/examples/8_born_sharded
//
// It prints how much of the parameters a rank holds at birth and after the plan, and the loss of every step beside that
// of one rank. It ends with an error if a loss differs by more than 1e-5.
#include <cmath>
#include <cstdio>
#include <optional>

#include "examples/llama.h"

using namespace intarsia;

namespace {

constexpr int kSteps = 5;

}  // namespace

int main() {
  init();  // joins the ranks that a launcher started; alone, a world of one
  std::optional<Simulation> simulation;
  if (current_world().size() == 1) simulation.emplace(4);
  TORCH_CHECK(current_world().size() == 4, "run it alone, or as 4 processes");
  auto mesh = init_device_mesh(torch::kCPU, {4}, {"tp"});
  bool speaks = current_world().hosted()[0] == 0;  // one of the ranks speaks for all
  llama::Options options{.vocabulary = 512, .width = 128, .layers = 4, .heads = 8, .key_heads = 4, .hidden = 344};

  torch::manual_seed(1);
  BornSharded scope(mesh, llama::plan(options));
  llama::Model model(options);
  auto at_birth = llama::bytes_held(model);
  scope.finish(model);  // names are known now: each parameter goes where the plan wants it
  torch::manual_seed(1);
  llama::Model alone(options);  // for comparison: whole
  if (speaks) {
    printf("a rank holds %ld of %ld bytes at birth, and %ld after the plan\n\n", at_birth, llama::bytes_held(alone),
           llama::bytes_held(model));
  }

  torch::optim::SGD optimizer(model->parameters(), 0.1), optimizer_alone(alone->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    auto text = (torch::arange(4 * 17).view({4, 17}) * 7 + step) % options.vocabulary;
    auto tokens = text.narrow(1, 0, 16).contiguous(), target = text.narrow(1, 1, 16).contiguous();
    auto loss_alone = llama::loss(alone->forward(tokens), target);
    auto whole_target = distribute_tensor(target, mesh, {Replicate()});
    auto loss = llama::loss(model->forward(distribute_tensor(tokens, mesh, {Replicate()})), whole_target);
    for (auto* each : {&loss_alone, &loss}) each->backward();
    optimizer.step(), optimizer_alone.step();
    optimizer.zero_grad(), optimizer_alone.zero_grad();
    auto ours = full_tensor(loss.detach()).item<double>(), theirs = loss_alone.item<double>();
    if (speaks) printf("step %d  loss %.6f  alone %.6f\n", step, ours, theirs);
    TORCH_CHECK(std::abs(ours - theirs) <= 1e-5, "the loss differs from that of one rank");
  }
}
