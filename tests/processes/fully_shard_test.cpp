// fully_shard where the ranks differ, which only real processes can.

#include "intarsia/data_parallel/fully_shard/fully_shard.h"

#include "tests/data_parallel/models.h"
#include "tests/support/error_text.h"

namespace intarsia::processes_fully_shard_test {
namespace {

int64_t own_rank() { return current_world().hosted()[0]; }
int64_t last_rank() { return current_world().size() - 1; }

void shard_layers(torch::nn::Sequential model, const DeviceMesh& mesh) {
  fully_shard(*model[0], mesh);
  fully_shard(*model[2], mesh);
  fully_shard(*model, mesh);
}

at::Tensor apply(torch::nn::Sequential model, size_t layer, const at::Tensor& x) {
  return model[layer]->as<torch::nn::Linear>()->forward(x);
}

// A step after an error works on all ranks.
void expect_usable(torch::nn::Sequential model, const DeviceMesh& mesh) {
  auto plain = mlp();
  model->zero_grad();
  model->forward(mine(inputs(0, {24, 5}), mesh)).square().mean().backward();
  plain->forward(inputs(0, {24, 5})).square().mean().backward();
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(
        torch::allclose(full_tensor(model->parameters()[i].grad()), plain->parameters()[i].grad(), 1e-12, 1e-12))
        << i;
  }
}

std::vector<double> sharded_losses(int64_t steps, int64_t rank) {
  auto mesh = all_ranks();
  auto model = mlp(90);
  shard_layers(model, mesh);
  torch::optim::AdamW optimizer(model->parameters(), 0.01);
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    auto loss = model->forward(mine(inputs(step, {24, 5}), mesh)).square().mean();
    loss.backward();
    optimizer.step();
    losses.push_back(value_at(loss, is_per_rank(loss) ? rank : 0).item<double>());
  }
  return losses;
}

TEST(FullyShardProcesses, ALossCurveIsExactlyThatOfASimulation) {
  auto n = current_world().size(), rank = own_rank();
  auto real = sharded_losses(10, rank);
  auto world = simulate(n);
  EXPECT_EQ(sharded_losses(10, rank), real);
}

struct Growing : torch::nn::Module {
  Growing() : w(register_parameter("w", inputs(0, {7, 5}))) {}
  at::Tensor forward(const at::Tensor& x) { return late.defined() ? at::linear(x, w, late) : at::linear(x, w); }
  at::Tensor w, late;
};

TEST(FullyShardProcesses, TheOrderOfCollectivesIsAnAgreementAndNoCollective) {
  auto mesh = all_ranks();
  auto model = mlp();
  shard_layers(model, mesh);
  auto x = mine(inputs(0, {24, 5}), mesh);
  for (int64_t step = 0; step < 2; ++step) {
    CommDebugMode comms;
    model->forward(x).square().mean().backward();
    auto counts = comms.get_comm_counts();
    EXPECT_EQ(counts["all_gather"], 5) << comms.text();
    EXPECT_EQ(counts["reduce_scatter(avg)"], 3) << comms.text();
    for (auto& event : comms.events()) EXPECT_NE(event.op, "fully_shard") << str(event);
    auto agreements = comms.agreements();
    EXPECT_EQ(agreements.size(),
              5 + 3 + 1 + 1);  // before each gathering and each reduction, at the end, and the report
    for (auto& agreement : agreements) EXPECT_EQ(agreement.op, "fully_shard");
  }
}

TEST(FullyShardProcesses, AParameterThatOneRankRegistersLateIsAnErrorOnAll) {
  auto mesh = all_ranks();
  auto model = std::make_shared<Growing>();
  fully_shard(*model, mesh);
  auto pass = [&] { model->forward(mine(inputs(0, {24, 5}), mesh)).square().mean().backward(); };
  if (own_rank() == last_rank()) model->late = model->register_parameter("late", inputs(1, {7}));
  auto text = error_text<c10::Error>(pass);
  EXPECT_EQ(text.find(own_rank() == last_rank()
                          ? "[fully_shard] \"late\" of Growing was registered after fully_shard was called"
                          : "[data_parallel] the ranks are at different modules: rank 0 at "),
            0)
      << text;
  model->late = at::Tensor();
  model->zero_grad();
  pass();
}

TEST(FullyShardProcesses, RanksThatSkipAModuleAreTold) {
  auto mesh = all_ranks();
  auto model = mlp();
  shard_layers(model, mesh);
  auto x = mine(inputs(0, {24, 5}), mesh);
  auto text = error_text<c10::Error>([&] {
    auto hidden = apply(model, 0, x);
    if (own_rank() != last_rank()) hidden = apply(model, 2, hidden);
    apply(model, 4, hidden).sum().backward();
  });
  EXPECT_NE(text.find("the ranks are at different modules: rank 0 at 2"), std::string::npos) << text;
  EXPECT_NE(text.find("rank " + std::to_string(last_rank()) + " at SequentialImpl"), std::string::npos) << text;
  expect_usable(model, mesh);
}

TEST(FullyShardProcesses, AParameterThatOneRankDoesNotUseIsNamedOnAllRanks) {
  auto mesh = all_ranks();
  auto model = mlp();
  fully_shard(*model, mesh);
  auto x = mine(inputs(0, {24, 5}), mesh);
  auto text = error_text<c10::Error>([&] {
    auto hidden = apply(model, 2, apply(model, 0, x));
    (own_rank() == last_rank() ? hidden : apply(model, 4, hidden)).sum().backward();
  });
  auto start =
      "[fully_shard] 4.weight, 4.bias of SequentialImpl got no gradient on rank " + std::to_string(last_rank());
  EXPECT_EQ(text.find(start), 0) << text;
  expect_usable(model, mesh);
}

TEST(FullyShardProcesses, AnErrorInTheBackwardOfOneRankReachesAll) {
  auto mesh = all_ranks();
  auto model = mlp();
  shard_layers(model, mesh);
  auto hidden = apply(model, 0, mine(inputs(0, {24, 5}), mesh));
  if (own_rank() == last_rank())
    hidden.register_hook([](const at::Tensor&) { TORCH_CHECK(false, "an error of the user"); });
  auto out = apply(model, 4, apply(model, 2, hidden));
  auto text = error_text<c10::Error>([&] { out.sum().backward(); });
  if (own_rank() == last_rank()) {
    EXPECT_EQ(text, "an error of the user");
  } else {
    EXPECT_NE(text.find("rank " + std::to_string(last_rank()) + " at an error"), std::string::npos) << text;
  }
  expect_usable(model, mesh);
}

// Copies of shards: the first half of the ranks has one copy, the second half the other.
DeviceMesh two_copies() { return init_device_mesh(at::kCPU, {2, current_world().size() / 2}, {"copies", "shards"}); }
bool in_second_copy() { return own_rank() >= current_world().size() / 2; }

TEST(FullyShardProcesses, CopiesThatSkipAModuleAreTold) {
  if (current_world().size() % 2) GTEST_SKIP() << "two copies need an even number of ranks";
  auto model = mlp();
  shard_layers(model, two_copies());
  auto x = mine(inputs(0, {24, 5}), all_ranks());
  auto text = error_text<c10::Error>([&] {
    auto hidden = apply(model, 0, x);
    if (!in_second_copy()) hidden = apply(model, 2, hidden);
    apply(model, 4, hidden).sum().backward();
  });
  EXPECT_NE(text.find("the ranks are at different modules: rank 0 at 2"), std::string::npos) << text;
  expect_usable(model, all_ranks());
}

TEST(FullyShardProcesses, AParameterThatOneCopyDoesNotUseIsNamedOnAllRanks) {
  if (current_world().size() % 2) GTEST_SKIP() << "two copies need an even number of ranks";
  auto model = mlp();
  fully_shard(*model, two_copies());
  auto x = mine(inputs(0, {24, 5}), all_ranks());
  auto text = error_text<c10::Error>([&] {
    auto hidden = apply(model, 2, apply(model, 0, x));
    (in_second_copy() ? hidden : apply(model, 4, hidden)).sum().backward();
  });
  EXPECT_EQ(text.find("[fully_shard] 4.weight, 4.bias of SequentialImpl got no gradient on rank"), 0) << text;
  expect_usable(model, all_ranks());
}

// Before any gradient has come, when the first group of backward is met.
TEST(FullyShardProcesses, AnErrorAtTheBeginningOfTheBackwardOfOneRankReachesAll) {
  auto mesh = all_ranks();
  auto model = mlp();
  FullyShardOptions freed;
  freed.reshard_after_forward = true;
  for (size_t i : {0, 2, 4}) fully_shard(*model[i], mesh, freed);
  for (auto& p : model[4]->parameters()) p.set_requires_grad(false);
  auto hidden = apply(model, 2, apply(model, 0, mine(inputs(0, {24, 5}), mesh)));
  if (own_rank() == last_rank())
    hidden.register_hook([](const at::Tensor&) { TORCH_CHECK(false, "an error of the user"); });
  auto text = error_text<c10::Error>([&] { apply(model, 4, hidden).sum().backward(); });
  if (own_rank() == last_rank()) {
    EXPECT_EQ(text, "an error of the user");
  } else {
    EXPECT_NE(text.find("rank " + std::to_string(last_rank()) + " at an error"), std::string::npos) << text;
  }
  for (auto& p : model[4]->parameters()) p.set_requires_grad(true);
  expect_usable(model, mesh);
}

TEST(FullyShardProcesses, AModuleOfWhichOneRankHasFrozenAPartIsNamed) {
  auto mesh = all_ranks();
  auto model = mlp();
  fully_shard(*model, mesh);
  if (own_rank() == last_rank()) model[2]->parameters()[0].set_requires_grad(false);
  auto text = error_text<c10::Error>([&] { model->forward(mine(inputs(0, {24, 5}), mesh)).sum().backward(); });
  EXPECT_EQ(text,
            "[data_parallel] the ranks are all at SequentialImpl, where not the same parameters require grad on all of "
            "them. All ranks "
            "must freeze the same parameters.");
  model[2]->parameters()[0].set_requires_grad(true);
  expect_usable(model, mesh);
}

TEST(FullyShardProcesses, ModulesOfOneNameHaveNumbers) {
  auto mesh = all_ranks();
  auto model = mlp(), other = mlp();
  fully_shard(*model, mesh), fully_shard(*other, mesh);
  auto& mine_now = own_rank() == last_rank() ? other : model;
  auto text = error_text<c10::Error>([&] { mine_now->forward(mine(inputs(0, {24, 5}), mesh)); });
  auto start = std::string("[data_parallel] the ranks are at different modules: rank 0 at SequentialImpl (number ");
  ASSERT_EQ(text.find(start), 0) << text;
  auto number = std::stoi(text.substr(start.size()));
  EXPECT_NE(text.find(c10::str("rank ", last_rank(), " at SequentialImpl (number ", number + 1, ")")), text.npos)
      << text;
  expect_usable(model, mesh);
}

// As after an error in the forward of one rank, which goes on with the next step.
TEST(FullyShardProcesses, RanksThatDoDifferentThingsWithOneModuleAreTold) {
  if (current_world().size() != 2) GTEST_SKIP() << "the text is that of two ranks";
  auto mesh = all_ranks();
  auto model = mlp();
  fully_shard(*model, mesh);
  auto x = mine(inputs(0, {24, 5}), mesh);
  auto out = model->forward(x);
  auto text = error_text<c10::Error>([&] {
    if (own_rank() == 0) return out.sum().backward();
    groups_in(*model)[0].reshard();
    model->forward(x);
  });
  EXPECT_EQ(text,
            "[data_parallel] the ranks are all at SequentialImpl, but do different things with it: rank 0 reduces its "
            "gradients, rank 1 "
            "gathers it. All ranks must use the same modules and parameters in the same order.");
  expect_usable(model, mesh);
}

TEST(FullyShardProcesses, AccumulatedGradientsThatOneRankHasNotAreNamed) {
  auto mesh = all_ranks();
  auto model = mlp();
  shard_layers(model, mesh);
  auto x = mine(inputs(0, {24, 5}), mesh);
  auto text = error_text<c10::Error>([&] {
    for (auto& group : groups_in(*model)) group.set_requires_gradient_sync(false);
    model->forward(x).sum().backward();
    if (own_rank() == last_rank()) model->zero_grad();
    for (auto& group : groups_in(*model)) group.set_requires_gradient_sync(true);
    apply(model, 0, x).sum().backward();
  });
  EXPECT_NE(text.find("the ranks are at different modules: rank 0 at"), std::string::npos) << text;
  expect_usable(model, mesh);
}

}  // namespace
}  // namespace intarsia::processes_fully_shard_test
