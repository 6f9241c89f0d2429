// explain of steps under fully_shard and replicate.

#include "intarsia/debug/explain_step.h"

#include "intarsia/data_parallel/leaf_hooks.h"
#include "tests/data_parallel/trainees.h"
#include "tests/support/error_text.h"

namespace intarsia::debug_explain_data_parallel_test {
namespace {

DeviceMesh four() { return init_device_mesh(at::kCPU, {4}, {"dp"}); }

// Each layer a group; the whole is freed after forward.
void shard_layers_of(torch::nn::Sequential model, const DeviceMesh& mesh) {
  FullyShardOptions freed;
  freed.reshard_after_forward = true;
  for (size_t i : {0, 2, 4}) fully_shard(*model[i], mesh, freed);
}

int64_t count_of(const StepExplanation& story, const std::string& kind, const std::string& op) {
  return std::count_if(story.collectives.begin(), story.collectives.end(), [&](auto& entry) {
    return entry.event.kind == kind && entry.event.op.find(op) != std::string::npos;
  });
}

TEST(ExplainDataParallel, TellsWhatAFullyShardedStepGathersAndReduces) {
  auto world = simulate(4);
  auto model = mlp(16);
  auto story = explain(model, four(), [&](auto& mesh) { shard_layers_of(model, mesh); }, {{{6, 5}, {}, at::kDouble}});
  EXPECT_EQ(story.parameters[0].layout, "[S(0)]");
  EXPECT_EQ(story.parameters[0].gradient, "[S(0)]");
  EXPECT_EQ(story.parameters[0].local_bytes, 4 * 5 * 8);
  EXPECT_EQ(count_of(story, "all_gather", "fully_shard LinearImpl"), 5) << story.text();
  EXPECT_EQ(count_of(story, "reduce_scatter(avg)", "fully_shard LinearImpl"), 3) << story.text();
  EXPECT_NE(story.text().find("bytes at rest"), std::string::npos) << story.text();
}

TEST(ExplainDataParallel, TellsWhatReshardingSaves) {
  auto world = simulate(4);
  auto peak = [](std::optional<bool> reshards) {
    auto model = mlp(256);
    FullyShardOptions options;
    options.reshard_after_forward = reshards;
    return explain(model, four(),
                   [&](auto& mesh) {
                     for (size_t i : {0, 2, 4}) fully_shard(*model[i], mesh, options);
                   },
                   {{{6, 5}, {}, at::kDouble}})
        .memory.peak;
  };
  auto model = mlp(256);
  auto whole =
      explain(model, four(), [&](auto& mesh) { replicate(*model, mesh); }, {{{6, 5}, {}, at::kDouble}}).memory.peak;
  EXPECT_LT(peak(true), whole);
  EXPECT_LE(peak(true), peak(false));
}

TEST(ExplainDataParallel, LeavesTheModuleAsItWas) {
  auto world = simulate(4);
  auto mesh = four();
  for (bool sharded : {true, false}) {
    auto model = mlp(), plain = mlp();
    auto* memory = model->parameters()[0].data_ptr();
    explain(model, mesh,
            [&](auto& stage) {
              if (sharded) shard_layers_of(model, stage);
              if (!sharded) replicate(*model, stage);
            },
            {{{6, 5}, {}, at::kDouble}});
    EXPECT_EQ(model->parameters()[0].data_ptr(), memory);
    for (auto& p : model->parameters()) EXPECT_TRUE(!watcher_of(p) && !p.grad().defined() && !is_dtensor(p));
    auto x = inputs(0, {6, 5});
    model->forward(x).sum().backward(), plain->forward(x).sum().backward();
    for (size_t i = 0; i < 6; ++i)
      EXPECT_TRUE(torch::equal(model->parameters()[i].grad(), plain->parameters()[i].grad()));
  }
}

TEST(ExplainDataParallel, TellsOfTensorParallelismInside) {
  auto world = simulate(8);
  auto model = small_llama(false);
  auto mesh = init_device_mesh(at::kCPU, {4, 2}, {"dp", "tp"});
  auto story = explain(model, mesh,
                       [&](auto& stage) {
                         parallelize_module(*model, stage["tp"], llama::plan(model->options));
                         for (auto& layer : *model->layers) fully_shard(*layer, stage["dp"]);
                         fully_shard(*model, stage["dp"]);
                       },
                       {{{2, 7}, {}, at::kLong}});
  EXPECT_EQ(count_of(story, "reduce_scatter(avg)", "fully_shard layers.0"), 1) << story.text();
  EXPECT_EQ(count_of(story, "all_gather", "fully_shard layers.0"), 2) << story.text();
}

TEST(ExplainDataParallel, AModelThatIsReplicatedAlreadyIsAnError) {
  auto world = simulate(4);
  auto model = mlp();
  replicate(*model, four());
  auto text = error_text<c10::ValueError>([&] { explain(model, four(), ParallelPlan(), {{{6, 5}, {}, at::kDouble}}); });
  EXPECT_EQ(text.substr(0, 44), "[explain] a tensor of shape [7, 5] of torch:") << text;
}

}  // namespace
}  // namespace intarsia::debug_explain_data_parallel_test
