#include "intarsia/data_parallel/fully_shard/fully_shard.h"

#include "intarsia/data_parallel/leaf_hooks.h"
#include "tests/data_parallel/models.h"
#include "tests/support/error_text.h"

namespace intarsia::data_parallel_fully_shard_test {
namespace {

constexpr int64_t kRows = 24;

at::Tensor mean_of_squares(torch::nn::Sequential model, const at::Tensor& x) {
  return model->forward(x).square().mean();
}

at::Tensor next_token_loss(llama::Model model, const at::Tensor& tokens) {
  auto logits = model->forward(tokens.narrow(1, 0, 6)).flatten(0, 1);
  return torch::cross_entropy_loss(logits, tokens.narrow(1, 1, 6).flatten());
}

at::Tensor some_tokens(int64_t step) { return inputs(step, {kRows, 7}).mul(1e4).to(at::kLong).remainder(17); }
at::Tensor some_rows(int64_t step) { return inputs(step, {kRows, 5}); }

// Losses and parameters of 20 steps are those of one process that has the whole batch.
template <class Model, class LossOf, class Batch, class Wrap>
void compare_sharded(Model plain, Model model, LossOf loss_of, Batch batch_of, Wrap wrap, double tolerance = 1e-11) {
  auto mesh = all_ranks();
  torch::optim::AdamW own(model->parameters(), torch::optim::AdamWOptions(0.01));  // made before: leaves stay the same
  torch::optim::AdamW goal(plain->parameters(), torch::optim::AdamWOptions(0.01));
  wrap(model, mesh);
  expect_same_losses({own, goal}, model, plain, loss_of, batch_of, mesh, tolerance);
  for (auto& p : model->parameters()) EXPECT_TRUE(is_dtensor(p));
  expect_same_tensors(*model, *plain, tolerance);
}

void wrap_mlp(torch::nn::Sequential model, const DeviceMesh& mesh, const FullyShardOptions& options = {}) {
  fully_shard(*model[0], mesh, options);
  fully_shard(*model[2], mesh, options);
  fully_shard(*model, mesh, options);
}

void wrap_llama(llama::Model model, const DeviceMesh& mesh) {
  for (auto& layer : *model->layers) fully_shard(*layer, mesh);
  fully_shard(*model, mesh);
}

TEST(FullyShard, TrainsAnUnmodifiedMlpAsOneProcessDoes) {
  in_every_world([] {
    compare_sharded(mlp(), mlp(), mean_of_squares, some_rows, [](auto model, auto& mesh) { wrap_mlp(model, mesh); });
  });
}

TEST(FullyShard, TrainsALlamaAsOneProcessDoes) {
  in_every_world(
      [] { compare_sharded(small_llama(false), small_llama(false), next_token_loss, some_tokens, wrap_llama); });
}

TEST(FullyShard, TrainsTiedWeightsAsOneProcessDoes) {
  in_every_world(
      [] { compare_sharded(small_llama(true), small_llama(true), next_token_loss, some_tokens, wrap_llama); });
}

TEST(FullyShard, TrainsAlikeWithEveryOption) {
  FullyShardOptions keep, free, columns, zeros;
  keep.reshard_after_forward = false;
  free.reshard_after_forward = true;
  columns.shard_dim = [](auto&, const at::Tensor& p) -> std::optional<int64_t> { return p.dim() - 1; };
  zeros.unused_as_zeros = true;
  for (auto& options : {keep, free, columns, zeros}) {
    in_every_world([&] {
      compare_sharded(mlp(), mlp(), mean_of_squares, some_rows,
                      [&](auto model, auto& mesh) { wrap_mlp(model, mesh, options); });
    });
  }
}

TEST(FullyShard, TrainsAlikeIfFewerRanksKeepTheWholeForBackward) {
  in_every_world([] {
    FullyShardOptions pairs;
    pairs.reshard_to = 2;
    pairs.reshard_after_forward = true;
    if (current_world().size() <= 2 || current_world().size() % 2) return;
    compare_sharded(mlp(), mlp(), mean_of_squares, some_rows,
                    [&](auto model, auto& mesh) { wrap_mlp(model, mesh, pairs); });
  });
}

TEST(FullyShard, ParametersAreShardsAtRestAndTheSameLeaves) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp();
    auto weight = model[0]->as<torch::nn::Linear>()->weight;
    auto before = weight.detach().clone();
    wrap_mlp(model, mesh);
    EXPECT_EQ(str(placements_of(weight)), "[S(0)]");
    EXPECT_TRUE(torch::equal(full_tensor(weight.detach()), before));
    mean_of_squares(model, mine(some_rows(0), mesh)).backward();
    EXPECT_EQ(str(placements_of(weight)), "[S(0)]");
    EXPECT_EQ(str(placements_of(weight.grad())), "[S(0)]");
  });
}

TEST(FullyShard, GathersEachGroupTwiceAndTheOutermostOnce) {
  auto world = simulate(2);
  auto mesh = all_ranks();
  auto model = mlp();
  wrap_mlp(model, mesh);
  auto x = mine(some_rows(0), mesh);
  for (int64_t step = 0; step < 2; ++step) {
    CommDebugMode comms;
    mean_of_squares(model, x).backward();
    auto counts = comms.get_comm_counts();
    EXPECT_EQ(counts["all_gather"], 5) << comms.text();
    EXPECT_EQ(counts["reduce_scatter(avg)"], 3) << comms.text();
    auto text = comms.text();  // gradients are on their way before the last group is gathered
    EXPECT_LT(text.find("reduce_scatter"), text.rfind("all_gather", text.rfind("reduce_scatter"))) << text;
  }
}

TEST(FullyShard, AddsUpWithoutSyncAndReducesTheSum) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp(), plain = mlp();
    wrap_mlp(model, mesh);
    for (int64_t round = 0; round < 2; ++round) {
      for (int64_t micro = 0; micro < 3; ++micro) {
        for (auto& group : groups_in(*model)) group.set_requires_gradient_sync(micro == 2);
        mean_of_squares(plain, some_rows(micro)).backward();
        mean_of_squares(model, mine(some_rows(micro), mesh)).backward();
      }
      for (size_t i = 0; i < 6; ++i) {
        auto grad = full_tensor(model->parameters()[i].grad());
        EXPECT_TRUE(torch::allclose(grad, plain->parameters()[i].grad(), 1e-12, 1e-12)) << i;
      }
    }
  });
}

TEST(FullyShard, FrozenAndUnusedParametersGetNoGradient) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp();
    model->parameters()[2].set_requires_grad(false);
    wrap_mlp(model, mesh);
    auto x = mine(some_rows(0), mesh);
    auto hidden = model[2]->as<torch::nn::Linear>()->forward(model[0]->as<torch::nn::Linear>()->forward(x));
    hidden.sum().backward();
    EXPECT_TRUE(model->parameters()[0].grad().defined());
    EXPECT_FALSE(model->parameters()[2].grad().defined());
    EXPECT_TRUE(model->parameters()[3].grad().defined());
    EXPECT_FALSE(model->parameters()[4].grad().defined());
    for (auto& p : model->parameters()) EXPECT_TRUE(is_dtensor(p));
  });
}

TEST(FullyShard, EvaluatesWithoutGradAndThenTrains) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp(), plain = mlp();
    wrap_mlp(model, mesh);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    mean_of_squares(model, mine(some_rows(0), mesh)).backward();
    {
      torch::NoGradGuard no_grad;
      auto out = full_tensor(from_local(model->forward(mine(some_rows(1), mesh)), mesh, {Shard(0)}));
      EXPECT_TRUE(torch::allclose(out, plain->forward(some_rows(1)), 1e-12, 1e-12));
    }
    optimizer.step();  // the shards, though the last forward left a group whole
    torch::optim::SGD goal(plain->parameters(), 0.1);
    mean_of_squares(plain, some_rows(0)).backward();
    goal.step();
    expect_same_tensors(*model, *plain);
  });
}

TEST(FullyShard, SeveralForwardsAndBackwardsOverOneGraph) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp(), plain = mlp();
    wrap_mlp(model, mesh);
    auto first = mean_of_squares(model, mine(some_rows(0), mesh)),
         second = mean_of_squares(model, mine(some_rows(1), mesh));
    auto a = mean_of_squares(plain, some_rows(0)), b = mean_of_squares(plain, some_rows(1));
    (first + second).backward({}, /*retain_graph=*/true), (a + b).backward({}, true);
    second.backward(), b.backward();
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(
          torch::allclose(full_tensor(model->parameters()[i].grad()), plain->parameters()[i].grad(), 1e-12, 1e-12))
          << i;
    }
  });
}

TEST(FullyShard, ScalarsAndSmallParametersAreServed) {
  struct ScaleImpl : torch::nn::Module {
    ScaleImpl() {
      scale = register_parameter("scale", torch::tensor(2.0, at::kDouble));
      bias = register_parameter("bias", torch::ones({1}, at::kDouble));
    }
    at::Tensor forward(const at::Tensor& x) { return x * scale + bias; }
    at::Tensor scale, bias;
  };
  in_every_world([] {
    auto mesh = all_ranks();
    ScaleImpl model;
    fully_shard(model, mesh);
    EXPECT_EQ(str(placements_of(model.scale)), "[R]");
    auto x = mine(at::arange(kRows, at::kDouble), mesh);
    model.forward(x).mean().backward();
    EXPECT_NEAR(full_tensor(model.scale.grad()).item<double>(), 11.5, 1e-12);
    EXPECT_NEAR(full_tensor(model.bias.grad()).item<double>(), 1, 1e-12);
  });
}

void expect_usable_after_errors(const std::function<void(torch::nn::Sequential, const DeviceMesh&)>& wrap) {
  in_every_world([&] {
    auto mesh = all_ranks();
    auto model = mlp(), plain = mlp();
    wrap(model, mesh);
    auto x = mine(some_rows(0), mesh);
    EXPECT_THROW(model->forward(x.narrow(1, 0, 3)), c10::Error);  // in forward
    auto hidden = model[0]->as<torch::nn::Linear>()->forward(x);
    hidden.register_hook([](const at::Tensor&) { TORCH_CHECK(false, "an error of the user"); });
    auto out = model[4]->as<torch::nn::Linear>()->forward(model[2]->as<torch::nn::Linear>()->forward(hidden));
    EXPECT_EQ(error_text<c10::Error>([&] { out.sum().backward(); }), "an error of the user");  // in backward
    for (auto& p : model->parameters()) EXPECT_FALSE(p.grad().defined());
    mean_of_squares(model, x).backward();
    mean_of_squares(plain, some_rows(0)).backward();
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(
          torch::allclose(full_tensor(model->parameters()[i].grad()), plain->parameters()[i].grad(), 1e-12, 1e-12))
          << i;
    }
  });
}

TEST(FullyShard, AnErrorLeavesTheModelUsable) {
  expect_usable_after_errors([](auto model, auto& mesh) { wrap_mlp(model, mesh); });
  expect_usable_after_errors(
      [](auto model, auto& mesh) { fully_shard(*model, mesh); });  // half of a group's gradients came
}

TEST(FullyShard, CopiesAlongOneAxisAndShardsAlongTheOther) {
  in_every_world([] {
    auto n = current_world().size();
    auto mesh = init_device_mesh(at::kCPU, {n % 2 ? n : 2, n % 2 ? 1 : n / 2}, {"copies", "shards"});
    auto model = mlp(), plain = mlp();
    wrap_mlp(model, mesh);
    EXPECT_EQ(str(placements_of(model->parameters()[0])), "[R, S(0)]");
    mean_of_squares(model, mine(some_rows(0), all_ranks())).backward();
    mean_of_squares(plain, some_rows(0)).backward();
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(
          torch::allclose(full_tensor(model->parameters()[i].grad()), plain->parameters()[i].grad(), 1e-12, 1e-12))
          << i;
    }
  });
}

TEST(FullyShard, MixedPrecisionIsThatOfTheSameCastsOnOneRank) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp(), plain = mlp();
    FullyShardOptions options;
    options.mp_policy.param_dtype = at::kFloat;
    options.mp_policy.reduce_dtype = at::kDouble;
    wrap_mlp(model, mesh, options);
    plain->to(at::kFloat);
    for (int64_t step = 0; step < 3; ++step) {
      mean_of_squares(model, mine(some_rows(step).to(at::kFloat), mesh)).backward();
      mean_of_squares(plain, some_rows(step).to(at::kFloat)).backward();
    }
    for (size_t i = 0; i < 6; ++i) {
      auto grad = full_tensor(model->parameters()[i].grad());
      EXPECT_EQ(grad.scalar_type(), at::kDouble);
      EXPECT_TRUE(torch::allclose(grad, plain->parameters()[i].grad().to(at::kDouble), 1e-5, 1e-6)) << i;
    }
  });
}

TEST(FullyShard, FreesTheMemoryOfTheWhole) {
  auto world = simulate(2);
  auto mesh = all_ranks();
  auto model = mlp();
  auto group = fully_shard(*model[0], mesh);
  EXPECT_FALSE(group.is_whole());
  group.unshard();
  EXPECT_TRUE(group.is_whole() && !is_dtensor(model->parameters()[0]));
  auto storage = model->parameters()[0].storage();
  EXPECT_EQ(storage.nbytes(), 7 * 5 * 8);
  group.reshard();
  EXPECT_EQ(storage.nbytes(), 0);
}

TEST(FullyShard, ClipsGradientsAndMovesStatesAsPlainModulesDo) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp(), plain = mlp(), other = mlp(7);
    wrap_mlp(model, mesh);
    mean_of_squares(model, mine(some_rows(0), mesh)).backward();
    mean_of_squares(plain, some_rows(0)).backward();
    auto norm = torch::nn::utils::clip_grad_norm_(model->parameters(), 0.01);
    EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.01), 1e-12);
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(
          torch::allclose(full_tensor(model->parameters()[i].grad()), plain->parameters()[i].grad(), 1e-12, 1e-12))
          << i;
    }
    for (auto& p : other->parameters()) p.detach().fill_(0.5);
    model->forward(mine(some_rows(0), mesh));  // leaves a group whole
    load_full_state_dict(*model, full_state_dict(*other));
    expect_same_tensors(*model, *other, 0);
    load_full_state_dict(*plain, full_state_dict(*model));
    expect_same_tensors(*plain, *other, 0);
    EXPECT_TRUE(
        torch::allclose(full_tensor(from_local(model->forward(mine(some_rows(1), mesh)).detach(), mesh, {Shard(0)})),
                        plain->forward(some_rows(1)), 1e-12, 1e-12));
  });
}

TEST(FullyShard, SeesWhatIsWrittenToShardsByAnotherHandle) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp();
    wrap_mlp(model, mesh);
    std::vector<at::Tensor> kept;
    for (auto& p : model->parameters()) kept.push_back(p.detach());
    auto x = mine(some_rows(0), mesh);
    for (int64_t round = 0; round < 3; ++round) {
      torch::NoGradGuard no_grad;
      for (auto& shards : kept) shards.fill_(0.1 * static_cast<double>(round));
      model->forward(x);  // leaves a group whole, and another one on its way
      for (auto& shards : kept) shards.zero_();
      EXPECT_EQ(number(model->forward(x).abs().sum()), 0) << round;
    }
  });
}

TEST(FullyShard, ACloneDoesNotDriveTheOriginal) {
  auto world = simulate(2);
  auto model = small_llama(false);
  wrap_llama(model, all_ranks());
  auto copy = model->clone();
  EXPECT_TRUE(is_dtensor(copy->parameters()[0]));
  EXPECT_FALSE(watcher_of(copy->parameters()[0]));
}

TEST(FullyShard, RefusesWhatItCannotDo) {
  auto world = simulate(8);
  auto model = mlp();
  auto cube = init_device_mesh(at::kCPU, {2, 2, 2}, {"a", "b", "c"});
  EXPECT_EQ(error_text<c10::ValueError>([&] { fully_shard(*model, cube); }),
            "[fully_shard] expects a mesh of one axis, or of two (copies, shards), not DeviceMesh(cpu, a=2, b=2, c=2). "
            "Take a slice "
            "of it by name.");
  FullyShardOptions options;
  options.shard_dim = [](auto&, auto&) { return 2; };
  EXPECT_EQ(error_text<c10::ValueError>([&] { fully_shard(*model, all_ranks(), options); }),
            "[fully_shard] dim 2 of \"0.weight\" is to be cut, which has the shape [7, 5]. Choose one of its dims.");
  EXPECT_EQ(error_text<c10::ValueError>([&] { sharded_by(*model); }),
            "[sharded_by] SequentialImpl is not sharded. Call fully_shard on it first.");
  fully_shard(*model, all_ranks());
  EXPECT_EQ(error_text<c10::Error>([&] { fully_shard(*model, all_ranks()); }),
            "[fully_shard] SequentialImpl is sharded already.");
}

TEST(FullyShard, GoesWithItsParameters) {
  auto world = simulate(2);
  std::weak_ptr<LeafWatcher> watcher;
  {
    auto model = mlp();
    wrap_mlp(model, all_ranks());
    mean_of_squares(model, mine(some_rows(0), all_ranks())).backward();
    watcher = watcher_of(model->parameters()[0]);
    EXPECT_FALSE(watcher.expired());
  }
  EXPECT_TRUE(watcher.expired());
}

}  // namespace
}  // namespace intarsia::data_parallel_fully_shard_test
