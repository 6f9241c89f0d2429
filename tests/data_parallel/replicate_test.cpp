#include "intarsia/data_parallel/replicate/replicate.h"

#include "intarsia/data_parallel/leaf_hooks.h"
#include "tests/data_parallel/models.h"
#include "tests/support/error_text.h"

namespace intarsia::data_parallel_replicate_test {
namespace {

constexpr int64_t kRows = 24;  // of a batch: 1, 2, 3, 4 and 8 ranks get as many each

at::Tensor mlp_loss(torch::nn::Sequential model, const at::Tensor& x) { return model->forward(x).square().mean(); }

at::Tensor llama_loss(llama::Model model, const at::Tensor& tokens) {
  auto logits = model->forward(tokens.narrow(1, 0, 6)).flatten(0, 1);
  return torch::cross_entropy_loss(logits, tokens.narrow(1, 1, 6).flatten());
}

at::Tensor tokens(int64_t step) { return inputs(step, {kRows, 7}).mul(1e4).to(at::kLong).remainder(17); }

// Losses and parameters of 20 steps on all ranks are those of one process that has the whole batch.
template <class Model, class LossOf, class Batch>
void compare_training(Model plain, Model model, LossOf loss_of, Batch batch_of, const ReplicateOptions& options = {}) {
  auto mesh = all_ranks();
  torch::optim::SGD own(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD goal(plain->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  replicate(*model, mesh, options);
  expect_same_losses({own, goal}, model, plain, loss_of, batch_of, mesh, 1e-12);
  expect_same_tensors(*model, *plain);
}

TEST(Replicate, TrainsAnMlpAsOneProcessDoes) {
  in_every_world(
      [] { compare_training(mlp(), mlp(), mlp_loss, [](int64_t step) { return inputs(step, {kRows, 5}); }); });
}

TEST(Replicate, TrainsALlamaAsOneProcessDoes) {
  in_every_world([] { compare_training(small_llama(false), small_llama(false), llama_loss, tokens); });
}

TEST(Replicate, TrainsTiedWeightsAsOneProcessDoes) {
  in_every_world([] { compare_training(small_llama(true), small_llama(true), llama_loss, tokens); });
}

TEST(Replicate, TrainsAlikeWithEveryOption) {
  ReplicateOptions small, view, unused, fixed, silent;
  small.bucket_cap_mb = 1e-4, small.first_bucket_mb = 1e-5;
  view.gradient_as_bucket_view = true;
  unused.find_unused_parameters = true;
  fixed.static_graph = true;
  silent.broadcast_buffers = false;
  for (auto& options : {small, view, unused, fixed, silent}) {
    in_every_world([&] {
      compare_training(mlp(), mlp(), mlp_loss, [](int64_t step) { return inputs(step, {kRows, 5}); }, options);
    });
  }
}

TEST(Replicate, TakesParametersAndBuffersOfTheFirstRank) {
  in_every_world([] {
    auto model = cnn(), first = cnn();
    auto rank = current_world().hosted()[0];
    for (auto& p : model->parameters()) p.detach().add_(static_cast<double>(rank));
    for (auto& b : model->buffers()) b.add_(rank);
    replicate(*model, all_ranks());
    expect_same_tensors(*model, *first, 0);
  });
}

// What one process gets that runs the parts of the batch one after the other: statistics are those of a part, and the
// first rank's are kept.
void train_part_by_part(torch::nn::Sequential model, int64_t n, int64_t steps) {
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<at::Tensor> before, after;
    for (auto& buffer : model->buffers()) before.push_back(buffer.clone());
    optimizer.zero_grad();
    for (int64_t part = 0; part < n; ++part) {
      for (size_t b = 0; b < before.size(); ++b) model->buffers()[b].copy_(before[b]);
      (mlp_loss(model, inputs(step, {kRows, 2, 6, 6}).chunk(n)[part]) / static_cast<double>(n)).backward();
      for (auto& buffer : model->buffers()) {
        if (part == 0) after.push_back(buffer.clone());
      }
    }
    for (size_t b = 0; b < before.size(); ++b) model->buffers()[b].copy_(after[b]);
    optimizer.step();
  }
}

TEST(Replicate, TrainsBatchNormsWithTheStatisticsOfTheFirstRank) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = cnn(), plain = cnn();
    train_part_by_part(plain, mesh.size(), 20);
    replicate(*model, mesh);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    for (int64_t step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      mlp_loss(model, mine(inputs(step, {kRows, 2, 6, 6}), mesh)).backward();
      optimizer.step();
    }
    expect_same_tensors(*model, *plain, 1e-11);
  });
}

TEST(Replicate, AddsUpWithoutSyncAndAveragesTheSum) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp(), plain = mlp();
    replicate(*model, mesh);
    for (int64_t round = 0; round < 2; ++round) {  // the second on top of averaged gradients
      for (int64_t micro = 0; micro < 3; ++micro) {
        mlp_loss(plain, inputs(micro, {kRows, 5})).backward();
        std::optional<NoSync> no_sync;
        if (micro < 2) no_sync.emplace(*model);
        mlp_loss(model, mine(inputs(micro, {kRows, 5}), mesh)).backward();
      }
      for (size_t i = 0; i < plain->parameters().size(); ++i) {
        auto grad = model->parameters()[i].grad();
        EXPECT_FALSE(is_per_rank(grad));
        EXPECT_TRUE(torch::allclose(grad, plain->parameters()[i].grad(), 1e-12, 1e-12)) << i;
      }
    }
  });
}

TEST(Replicate, ServesSubmodulesOneByOneAndNested) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp(), plain = mlp();
    replicate(*model[0], mesh);
    replicate(*model[2], mesh);
    replicate(*model, mesh);  // what is left
    for (int64_t step = 0; step < 3; ++step) {
      plain->zero_grad(), model->zero_grad();
      mlp_loss(plain, inputs(step, {kRows, 5})).backward();
      mlp_loss(model, mine(inputs(step, {kRows, 5}), mesh)).backward();
      for (size_t i = 0; i < plain->parameters().size(); ++i) {
        EXPECT_TRUE(torch::allclose(model->parameters()[i].grad(), plain->parameters()[i].grad(), 1e-12, 1e-12)) << i;
      }
    }
    EXPECT_EQ(replica_of(*model).buckets().size(), 1);
    EXPECT_EQ(replica_of(*model).buckets()[0].size(), 2);
  });
}

TEST(Replicate, LeavesIgnoredModulesAndFrozenParametersAlone) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp();
    ReplicateOptions options;
    options.ignored_modules = {model[0].get()};
    model->parameters()[2].set_requires_grad(false);
    replicate(*model, mesh, options);
    mlp_loss(model, mine(inputs(0, {kRows, 5}), mesh)).backward();
    EXPECT_EQ(is_per_rank(model->parameters()[0].grad()), mesh.slots().size() > 1);
    EXPECT_FALSE(model->parameters()[2].grad().defined());
    EXPECT_FALSE(is_per_rank(model->parameters()[3].grad()));
  });
}

TEST(Replicate, SendsTheFirstGradientsOnTheirWayEarly) {
  auto world = simulate(2);
  auto model = mlp(300);
  ReplicateOptions options;
  options.first_bucket_mb = 0.001, options.bucket_cap_mb = 1;
  auto replica = replicate(*model, all_ranks(), options);
  using Names = std::vector<std::vector<std::string>>;
  EXPECT_EQ(replica.buckets(), (Names{{"4.bias", "4.weight"}, {"2.bias", "2.weight", "0.bias", "0.weight"}}));
}

TEST(Replicate, TracesWhatItSends) {
  auto world = simulate(2);
  auto mesh = all_ranks();
  auto model = mlp();
  replicate(*model, mesh);
  auto x = mine(inputs(0, {kRows, 5}), mesh);
  CommDebugMode comms;
  mlp_loss(model, x).backward();
  EXPECT_EQ(comms.text(), "all_gather dp 976B\n");
  EXPECT_EQ(comms.agreements().size(), 1u);  // the report
}

TEST(Replicate, ALargeBucketIsReducedInPartsAndGathered) {
  auto world = simulate(2);
  auto mesh = all_ranks();
  auto model = mlp(200);
  replicate(*model, mesh);
  auto x = mine(inputs(0, {kRows, 5}), mesh);
  CommDebugMode comms;
  mlp_loss(model, x).backward();
  EXPECT_EQ(comms.text(), "reduce_scatter(avg) dp 168016B\nall_gather dp 168016B\n");
}

TEST(Replicate, CompressedGradientsAreThoseOfTheSmallerType) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp(), plain = mlp();
    replicate(*model, mesh).register_comm_hook(compress_to(at::kBFloat16));
    mlp_loss(plain, inputs(0, {kRows, 5})).backward();
    mlp_loss(model, mine(inputs(0, {kRows, 5}), mesh)).backward();
    for (size_t i = 0; i < plain->parameters().size(); ++i) {
      auto grad = model->parameters()[i].grad(), goal = plain->parameters()[i].grad();
      EXPECT_TRUE(torch::equal(grad, grad.to(at::kBFloat16).to(at::kDouble))) << i;
      EXPECT_TRUE(torch::allclose(grad, goal, 0.05, 0.01)) << i;
    }
  });
}

TEST(Replicate, ACommunicationHookOfOnesOwnDecidesTheGradient) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp();
    std::vector<std::string> seen;
    replicate(*model, mesh).register_comm_hook([&](GradientBucket& bucket) -> Wait {
      EXPECT_TRUE(bucket.is_last);
      seen = bucket.parameters;
      return [values = bucket.values] {
        for (auto& value : values) value.fill_(7);
      };
    });
    mlp_loss(model, mine(inputs(0, {kRows, 5}), mesh)).backward();
    EXPECT_EQ(seen.size(), 6);
    for (auto& p : model->parameters()) EXPECT_TRUE(p.grad().eq(7).all().item<bool>());
  });
}

// The last layer is used in every second step only.
at::Tensor loss_without_last(torch::nn::Sequential model, at::Tensor x, bool all) {
  for (size_t i = 0; i < (all ? 5 : 4); ++i) x = i % 2 ? torch::tanh(x) : model[i]->as<torch::nn::Linear>()->forward(x);
  return x.square().mean();
}

TEST(Replicate, UnusedParametersKeepTheirGradientIfThatIsAllowed) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp();
    ReplicateOptions options;
    options.find_unused_parameters = true;
    replicate(*model, mesh, options);
    for (bool all : {false, true, false}) {
      model->zero_grad();
      loss_without_last(model, mine(inputs(0, {kRows, 5}), mesh), all).backward();
      EXPECT_EQ(model->parameters()[4].grad().defined(), all);
      EXPECT_FALSE(is_per_rank(model->parameters()[0].grad()));
    }
  });
}

TEST(Replicate, AnUnusedParameterIsAnErrorThatNamesItAndTheRanks) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp();
    replicate(*model, mesh);
    auto x = mine(inputs(0, {kRows, 5}), mesh);
    auto n = mesh.size();
    std::string ranks = n == 1 ? "rank 0" : "ranks 0";
    for (int64_t rank = 1; rank < n; ++rank) ranks += ", " + std::to_string(rank);
    EXPECT_EQ(error_text<c10::Error>([&] { loss_without_last(model, x, false).backward(); }),
              "[replicate] 4.weight, 4.bias of SequentialImpl got no gradient on " + ranks +
                  ". Use it in every step, set "
                  "find_unused_parameters, or leave it out with ignored_parameters.");
    model->zero_grad();
    loss_without_last(model, x, true).backward();  // and all is well again
    EXPECT_FALSE(is_per_rank(model->parameters()[0].grad()));
  });
}

TEST(Replicate, AStaticGraphMayLeaveParametersOutButNotChange) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp();
    ReplicateOptions options;
    options.static_graph = true;
    replicate(*model, mesh, options);
    auto x = mine(inputs(0, {kRows, 5}), mesh);
    for (int64_t step = 0; step < 2; ++step) loss_without_last(model, x, false).backward();
    auto text = error_text<c10::Error>([&] { loss_without_last(model, x, true).backward(); });
    EXPECT_EQ(
        text.find("[replicate] 4.weight, 4.bias of SequentialImpl got gradients otherwise than in the first step"), 0)
        << text;
  });
}

TEST(Replicate, AnErrorInBackwardLeavesTheModelUsable) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp(), plain = mlp();
    ReplicateOptions options;
    options.first_bucket_mb = 1e-5, options.bucket_cap_mb = 1e-5;
    replicate(*model, mesh, options);
    auto x = mine(inputs(0, {kRows, 5}), mesh);
    auto hidden = model[0]->as<torch::nn::Linear>()->forward(x);
    hidden.register_hook([](const at::Tensor&) { TORCH_CHECK(false, "an error of the user"); });
    auto out = model[4]->as<torch::nn::Linear>()->forward(model[2]->as<torch::nn::Linear>()->forward(hidden));
    auto text = error_text<c10::Error>([&] { out.sum().backward(); });
    EXPECT_EQ(text, "an error of the user");
    model->zero_grad();
    mlp_loss(model, x).backward();
    mlp_loss(plain, inputs(0, {kRows, 5})).backward();
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(torch::allclose(model->parameters()[i].grad(), plain->parameters()[i].grad(), 1e-12, 1e-12)) << i;
    }
  });
}

TEST(Replicate, ACopyIsAPlainModule) {
  auto world = simulate(2);
  auto model = mlp();
  replicate(*model, all_ranks());
  auto copy = torch::nn::Sequential(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone()));
  mlp_loss(copy, mine(inputs(0, {kRows, 5}), all_ranks())).backward();
  EXPECT_TRUE(is_per_rank(copy->parameters()[0].grad()));
}

TEST(Replicate, GoesWithItsParameters) {
  auto world = simulate(2);
  std::weak_ptr<LeafWatcher> watcher;
  {
    auto model = mlp();
    replicate(*model, all_ranks());
    mlp_loss(model, mine(inputs(0, {kRows, 5}), all_ranks())).backward();
    watcher = watcher_of(model->parameters()[0]);
    EXPECT_FALSE(watcher.expired());
  }
  EXPECT_TRUE(watcher.expired());
}

TEST(Replicate, RefusesWhatItCannotDo) {
  auto world = simulate(4);
  auto model = mlp();
  EXPECT_EQ(error_text<c10::ValueError>([&] { replicate(*model, init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"})); }),
            "[replicate] expects a mesh of one axis, not DeviceMesh(cpu, dp=2, tp=2). Take a slice of it by name, or "
            "flatten it.");
  EXPECT_EQ(error_text<c10::ValueError>([&] { replica_of(*model); }),
            "[replica_of] SequentialImpl is not replicated. Call replicate on it first.");
  replicate(*model, all_ranks());
  EXPECT_EQ(error_text<c10::Error>([&] { replicate(*model, all_ranks()); }),
            "[replicate] all parameters of SequentialImpl are replicated or sharded already.");
  auto frozen = mlp();
  for (auto& p : frozen->parameters()) p.set_requires_grad(false);
  EXPECT_EQ(error_text<c10::Error>([&] { replicate(*frozen, all_ranks()); }),
            "[replicate] no parameter of SequentialImpl requires grad, so there is nothing to average.");
}

}  // namespace
}  // namespace intarsia::data_parallel_replicate_test
