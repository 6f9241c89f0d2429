// What explain tells of a data-parallel step, beside the step itself.

#include "intarsia/debug/explain_step.h"

#include "tests/data_parallel/trainees.h"
#include "tests/support/peak_memory.h"

namespace intarsia::processes_explain_test {
namespace {

std::string text_of(const std::vector<ModuleTrace::Entry>& entries) {
  std::string text;
  for (auto& entry : entries) text += str(entry.phase) + " " + str(entry.event) + " for " + entry.event.op + "\n";
  return text;
}

struct Plan {
  const char* name;
  std::function<void(torch::nn::Sequential, const DeviceMesh&)> make;
};

std::vector<Plan> plans() {
  auto by_layer = [](bool reshards) {
    return [=](torch::nn::Sequential model, const DeviceMesh& mesh) {
      FullyShardOptions options;
      options.reshard_after_forward = reshards;
      for (size_t i : {0, 2, 4}) fully_shard(*model[i], mesh, options);
    };
  };
  return {{"replicate", [](auto model, auto& mesh) { replicate(*model, mesh); }},
          {"fully_shard", by_layer(true)},
          {"fully_shard, kept", by_layer(false)},
          {"fully_shard, one group", [](auto model, auto& mesh) { fully_shard(*model, mesh); }}};
}

TEST(ExplainProcesses, TellsWhatARealStepSendsAndNeeds) {
  auto mesh = all_ranks();
  for (auto& plan : plans()) {
    SCOPED_TRACE(plan.name);
    auto model = mlp(512);
    auto loss = [&](const std::vector<at::Tensor>& in) { return model->forward(in[0]).sum(); };
    auto story =
        explain(*model, mesh, [&](auto& stage) { plan.make(model, stage); }, {{{32, 5}, {}, at::kDouble}}, loss);
    plan.make(model, mesh);
    auto x = torch::ones({32, 5}, at::kDouble);
    loss({x}).backward();
    model->zero_grad();
    ModuleTrace trace(*model);
    auto peak = peak_of([&] { loss({x}).backward(); });
    if (current_world().hosted()[0] != 0) continue;  // explain speaks of the first rank
    EXPECT_EQ(text_of(trace.entries()), text_of(story.collectives));
    auto told = story.memory.peak - story.memory.at_rest;
    std::cout << plan.name << ": told " << told << ", needed " << peak << "\n";
    EXPECT_NEAR(static_cast<double>(told), static_cast<double>(peak), 0.05 * static_cast<double>(peak));
  }
}

}  // namespace
}  // namespace intarsia::processes_explain_test
