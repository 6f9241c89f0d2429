// replicate where the ranks differ, which only real processes can.

#include "tests/data_parallel/models.h"
#include "tests/support/error_text.h"

namespace intarsia::processes_replicate_test {
namespace {

at::Tensor squares(torch::nn::Sequential model, const at::Tensor& x) { return model->forward(x).square().mean(); }

int64_t me() { return current_world().hosted()[0]; }
int64_t last() { return current_world().size() - 1; }

at::Tensor part_of(int64_t step, const DeviceMesh& mesh) { return mine(inputs(step, {24, 5}), mesh); }

// Whether all ranks hold the same gradients.
bool agree(const torch::nn::Module& module, const DeviceMesh& mesh) {
  for (auto& p : module.parameters()) {
    auto all = full_tensor(from_local(p.grad().unsqueeze(0), mesh, {Shard(0)}));
    if (!all.eq(all.narrow(0, 0, 1)).all().item<bool>()) return false;
  }
  return true;
}

std::vector<double> losses_of(int64_t steps, int64_t rank) {
  auto mesh = all_ranks();
  auto model = mlp(90);  // more than one exchange
  replicate(*model, mesh);
  torch::optim::AdamW optimizer(model->parameters(), 0.01);
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    auto loss = squares(model, part_of(step, mesh));
    loss.backward();
    optimizer.step();
    losses.push_back(value_at(loss, is_per_rank(loss) ? rank : 0).item<double>());
  }
  return losses;
}

TEST(ReplicateProcesses, ALossCurveIsExactlyThatOfASimulation) {
  auto n = current_world().size(), rank = me();
  auto real = losses_of(10, rank);
  auto world = simulate(n);
  EXPECT_EQ(losses_of(10, rank), real);
}

TEST(ReplicateProcesses, AParameterThatOneRankDoesNotUseIsNamedOnAllRanks) {
  auto mesh = all_ranks();
  auto model = mlp();
  replicate(*model, mesh);
  auto x = part_of(0, mesh);
  auto partly = [&] {
    return model[2]->as<torch::nn::Linear>()->forward(model[0]->as<torch::nn::Linear>()->forward(x)).sum();
  };
  auto text = error_text<c10::Error>([&] { (me() == last() ? partly() : squares(model, x)).backward(); });
  EXPECT_EQ(text, "[replicate] 4.weight, 4.bias of SequentialImpl got no gradient on rank " + std::to_string(last()) +
                      ". Use it in every step, set find_unused_parameters, or leave it out with ignored_parameters.");
  model->zero_grad();
  squares(model, x).backward();
  EXPECT_TRUE(agree(*model, mesh));
}

TEST(ReplicateProcesses, WhatSomeRanksDoNotUseIsAveragedWithZeros) {
  auto mesh = all_ranks();
  auto model = mlp();
  ReplicateOptions options;
  options.find_unused_parameters = true;
  replicate(*model, mesh, options);
  auto linear = [&](size_t i, const at::Tensor& x) { return model[i]->as<torch::nn::Linear>()->forward(x); };
  auto x = at::ones({1, 7}, at::kDouble);
  (me() == 0 ? linear(4, x) : linear(2, x)).sum().backward();
  auto n = static_cast<double>(mesh.size());
  EXPECT_TRUE(torch::allclose(model->parameters()[4].grad(), at::full({3, 7}, 1 / n, at::kDouble), 1e-12, 1e-12));
  EXPECT_TRUE(torch::allclose(model->parameters()[3].grad(), at::full({7}, (n - 1) / n, at::kDouble), 1e-12, 1e-12));
  EXPECT_FALSE(model->parameters()[0].grad().defined());
}

TEST(ReplicateProcesses, AnErrorInTheBackwardOfOneRankReachesAll) {
  auto mesh = all_ranks();
  auto model = mlp();
  ReplicateOptions options;
  options.first_bucket_mb = 1e-5, options.bucket_cap_mb = 1e-5;
  replicate(*model, mesh, options);
  auto hidden = model[0]->as<torch::nn::Linear>()->forward(part_of(0, mesh));
  if (me() == last()) hidden.register_hook([](const at::Tensor&) { TORCH_CHECK(false, "an error of the user"); });
  auto out = model[4]->as<torch::nn::Linear>()->forward(model[2]->as<torch::nn::Linear>()->forward(hidden));
  auto text = error_text<c10::Error>([&] { out.sum().backward(); });
  if (me() == last()) {
    EXPECT_EQ(text, "an error of the user");
  } else {
    EXPECT_EQ(
        text,
        "[replicate] the backward pass of SequentialImpl ended with an error on rank " + std::to_string(last()) +
            ", so the gradients of this step are not averaged. See the error there; then call zero_grad and go on.");
  }
  model->zero_grad();
  squares(model, part_of(1, mesh)).backward();
  EXPECT_TRUE(agree(*model, mesh));
}

TEST(ReplicateProcesses, RanksWithDifferentModelsAreToldAtOnce) {
  auto model = me() == last() ? mlp(8) : mlp(7);
  auto text = error_text<c10::ValueError>([&] { replicate(*model, all_ranks()); });
  EXPECT_EQ(text, "[replicate] the ranks hold different tensors: rank 0 has 0.weight Double [7, 5], rank " +
                      std::to_string(last()) + " has 0.weight Double [8, 5]. Build the same model on every rank.");
}

TEST(ReplicateProcesses, RanksAtDifferentModulesAreTold) {
  auto mesh = all_ranks();
  auto first = mlp(), second = mlp();
  replicate(*first, mesh);
  replicate(*second[0], mesh);
  auto x = part_of(0, mesh);
  auto text = error_text<c10::Error>(
      [&] { (me() == last() ? squares(first, x) : second[0]->as<torch::nn::Linear>()->forward(x).sum()).backward(); });
  EXPECT_EQ(text.find("[data_parallel] the ranks are at different modules: rank 0 at LinearImpl"), 0) << text;
  first->zero_grad();
  squares(first, x).backward();
  EXPECT_TRUE(agree(*first, mesh));
}

TEST(ReplicateProcesses, AParameterRegisteredOnOneRankIsNamedOnAll) {
  auto mesh = all_ranks();
  auto model = mlp();
  replicate(*model, mesh);
  if (me() == last()) {
    torch::nn::Linear more(3, 2);
    more->to(at::kDouble);
    model->push_back(more);
  }
  EXPECT_EQ(error_text<c10::Error>([&] { squares(model, part_of(0, mesh)).backward(); }),
            "[replicate] 5.weight, 5.bias of SequentialImpl got a gradient on rank " + std::to_string(last()) +
                " that is not averaged: "
                "the parameter was registered after replicate was called. Register all parameters first, or call "
                "replicate again, which takes "
                "those that it does not have yet.");
}

TEST(ReplicateProcesses, RanksThatRunOutOfBatchesKeepTheOthersCompany) {
  auto mesh = all_ranks();
  auto model = mlp(), plain = mlp();
  auto replica = replicate(*model, mesh);
  torch::optim::SGD own(model->parameters(), 0.1), goal(plain->parameters(), 0.1);
  auto n = mesh.size();
  auto batches = 2 + me();  // the last rank has the most
  replica.join([&] {
    for (int64_t step = 0; step < batches; ++step) {
      own.zero_grad();
      squares(model, inputs(step * 10 + me(), {4, 5})).backward();
      own.step();
    }
  });
  for (int64_t step = 0; step < 2 + n - 1; ++step) {
    goal.zero_grad();
    for (int64_t rank = 0; rank < n; ++rank) {
      if (step < 2 + rank) (squares(plain, inputs(step * 10 + rank, {4, 5})) / static_cast<double>(n)).backward();
    }
    goal.step();
  }
  expect_same_tensors(*model, *plain);
}

TEST(ReplicateProcesses, AJoinMayCountOnlyThoseThatHaveBatches) {
  auto mesh = all_ranks();
  auto model = mlp();
  auto replica = replicate(*model, mesh);
  auto local = mlp();
  replica.join(
      [&] {
        if (me() != last()) return;
        squares(model, inputs(0, {4, 5})).backward();
        squares(local, inputs(0, {4, 5})).backward();
        EXPECT_TRUE(torch::allclose(model->parameters()[0].grad(), local->parameters()[0].grad(), 1e-12, 1e-12));
      },
      false);
}

TEST(ReplicateProcesses, AnErrorInsideAJoinReachesAll) {
  auto mesh = all_ranks();
  auto model = mlp();
  auto replica = replicate(*model, mesh);
  auto text = error_text<c10::Error>([&] {
    replica.join([&] {
      TORCH_CHECK(me() != last(), "no data");
      squares(model, part_of(0, mesh)).backward();
    });
  });
  auto expected =
      me() == last() ? "no data" : "[replicate] the backward pass of SequentialImpl ended with an error on rank";
  EXPECT_EQ(text.find(expected), 0) << text;
}

}  // namespace
}  // namespace intarsia::processes_replicate_test
