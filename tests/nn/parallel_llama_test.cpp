// The Llama-style model of the examples, cut by tensor and sequence parallelism: it learns as on one rank, and each
// block sends what theory asks for and nothing else.
#include "examples/llama.h"
#include "tests/nn/parallel_models.h"
#include "tests/support/world.h"

namespace intarsia::nn_parallel_llama_test {
namespace {

constexpr int64_t kBatch = 2, kLength = 16, kWidth = 32, kVocabulary = 96;

template <class Body>
void on_four_ranks(Body body) {
  for_each_world({4}, [&](int64_t n) { body(init_device_mesh(at::kCPU, {n}, {"tp"})); });
}

// The plan with plain tensors of each rank between wq, wk, wv and wo, as use_local_output has it by default.
ParallelPlan plan_with_local_heads(const llama::Options& options) {
  auto entries = llama::plan(options).entries();
  entries.erase(entries.begin());  // the tables stay plain
  for (auto& [path, style] : entries) {
    if (path == "layers.*.attention.w[qkv]") style = ColwiseParallel();
  }
  return entries;
}

struct Trained {
  std::vector<double> losses;
  std::string forward[2], backward[2], ends[3];  // per block; outside of blocks per phase
};

Trained train(llama::Model model, const DeviceMesh* mesh, int64_t length, int steps) {
  torch::manual_seed(2);
  auto text = torch::randint(model->options.vocabulary, {kBatch, length + 1});
  auto tokens = text.narrow(1, 0, length), target = text.narrow(1, 1, length);
  if (mesh) target = distribute_tensor(target, *mesh, {Replicate()});
  torch::optim::AdamW optimizer(model->parameters(), 0.01);
  Trained result;
  std::vector<at::Tensor> losses;  // reading one sends, so that waits for the end
  ModuleTrace trace(*model);
  for (int step = 0; step < steps; ++step) {
    trace.clear();
    optimizer.zero_grad();
    auto loss = llama::loss(model(tokens), target);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.detach());
  }
  for (int i : {0, 1}) {
    result.forward[i] = trace.text("layers." + std::to_string(i), Phase::forward);
    result.backward[i] = trace.text("layers." + std::to_string(i), Phase::backward);
  }
  for (auto& entry : trace.entries()) {
    if (entry.module.rfind("layers", 0) != 0) result.ends[static_cast<int>(entry.phase)] += str(entry.event) + "\n";
  }
  for (auto& loss : losses) result.losses.push_back(loss.item<double>());
  return result;
}

llama::Model fresh(const llama::Options& options) {
  torch::manual_seed(1);
  return llama::Model(options);
}

void expect_same_losses(const Trained& actual, const Trained& expected) {
  for (size_t i = 0; i < expected.losses.size(); ++i) EXPECT_NEAR(actual.losses[i], expected.losses[i], 1e-5) << i;
}

TEST(ParallelLlama, LearnsAsOnOneRankAndSendsWhatTheoryAsksFor) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (bool tied : {false, true}) {
      llama::Options options{.tied = tied};
      auto expected = train(fresh(options), nullptr, kLength, 20);
      for (auto& plan : {llama::plan(options), plan_with_local_heads(options)}) {
        auto model = fresh(options);
        parallelize_module(model, mesh, plan);
        auto actual = train(model, &mesh, kLength, 20);
        expect_same_losses(actual, expected);
        // [2, 16, 32] floats, of which each rank has a quarter: 4096B less 1024B
        auto gather = "all_gather tp 3072B\n", scatter = "reduce_scatter(sum) tp 3072B\n";
        auto block = std::string(gather) + scatter + gather + scatter;
        for (int i : {0, 1}) {
          EXPECT_EQ(actual.forward[i], block);
          EXPECT_EQ(actual.backward[i], block);
        }
        // The ends: the embedding scatters its sum, the output layer gathers the sequence. The loss reduces a number
        // per token (largest logit, sum of exponentials; backward one) and itself: 2 * 3/4 of 128B and of 4B.
        auto token = [](const char* op) { return std::string("all_reduce(") + op + ") tp 192B\n"; };
        EXPECT_EQ(actual.ends[0],
                  std::string(scatter) + gather + token("max") + token("sum") + "all_reduce(sum) tp 6B\n");
        EXPECT_EQ(actual.ends[1], token("sum") + scatter + gather);
        // The gradients of five norms, 32 floats each.
        EXPECT_EQ(actual.ends[2], token("sum") + token("sum") + token("sum") + token("sum") + token("sum"));
      }
    }
  });
}

TEST(ParallelLlama, LearnsAsOnOneRankWhereNothingDivides) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (bool tied : {false, true}) {
      llama::Options options{
          .vocabulary = 90, .width = 36, .layers = 2, .heads = 6, .key_heads = 3, .hidden = 42, .tied = tied};
      auto expected = train(fresh(options), nullptr, 9, 5);
      auto model = fresh(options);
      parallelize_module(model, mesh, llama::plan(options));
      expect_same_losses(train(model, &mesh, 9, 5), expected);
    }
  });
}

TEST(ParallelLlama, ACloneLearnsTheSame) {
  on_four_ranks([](const DeviceMesh& mesh) {
    llama::Options options;
    auto model = fresh(options);
    parallelize_module(model, mesh, llama::plan(options));
    auto copy = deepcopy(model);
    auto expected = train(model, &mesh, kLength, 3), actual = train(copy, &mesh, kLength, 3);
    EXPECT_EQ(actual.losses, expected.losses);
    EXPECT_EQ(actual.forward[1], expected.forward[1]);
  });
}

TEST(ExplainStep, ForeseesTheCollectivesOfALlama) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (bool local : {false, true}) {
      llama::Options options;
      auto model = fresh(options);
      auto plan = local ? plan_with_local_heads(options) : llama::plan(options);
      CommDebugMode comms;
      auto story = explain(*model, mesh, plan,
                           {{{kBatch, kLength}, {}, at::kLong}, {{kBatch, kLength}, {Replicate()}, at::kLong}},
                           [&](auto& in) { return llama::loss(model(in[0]), in[1]); });
      for (auto& parameter : model->parameters()) EXPECT_FALSE(is_dtensor(parameter));
      parallelize_module(model, mesh, plan);
      auto actual = train(model, &mesh, kLength, 1);
      std::string forward, backward, ends[3];
      for (auto& [module, phase, event] : story.collectives) {
        bool block = module.rfind("layers.0", 0) == 0;
        if (block) (phase == Phase::forward ? forward : backward) += str(event) + "\n";
        if (module.rfind("layers", 0) != 0) ends[static_cast<int>(phase)] += str(event) + "\n";
      }
      EXPECT_EQ(forward, actual.forward[0]);
      EXPECT_EQ(backward, actual.backward[0]);
      for (int phase : {0, 1, 2}) EXPECT_EQ(ends[phase], actual.ends[phase]);
    }
  });
}

}  // namespace
}  // namespace intarsia::nn_parallel_llama_test
