// What programs do to a sharded model besides training it.

#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "tests/data_parallel/models.h"
#include "tests/support/error_text.h"

namespace intarsia::data_parallel_changed_models_test {
namespace {

at::Tensor some(int64_t step) { return inputs(step, {24, 5}); }
at::Tensor mean_squared(torch::nn::Sequential model, const at::Tensor& x) { return model->forward(x).square().mean(); }

void shard_by_layer(torch::nn::Sequential model, const DeviceMesh& mesh) {
  for (size_t i : {0, 2, 4}) fully_shard(*model[i], mesh);
}

TEST(ChangedModels, ToAnotherDtypeTheyTrainInThat) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp(), plain = mlp();
    shard_by_layer(model, mesh);
    mean_squared(model, mine(some(0), mesh)).backward();  // the whole was there in double before
    model->zero_grad();
    model->to(at::kFloat), plain->to(at::kFloat);
    EXPECT_TRUE(is_dtensor(model->parameters()[0]) && model->parameters()[0].scalar_type() == at::kFloat);
    torch::optim::SGD own(model->parameters(), 0.1), goal(plain->parameters(), 0.1);
    for (int64_t step = 0; step < 3; ++step) {
      own.zero_grad(), goal.zero_grad();
      mean_squared(model, mine(some(step).to(at::kFloat), mesh)).backward();
      mean_squared(plain, some(step).to(at::kFloat)).backward();
      own.step(), goal.step();
    }
    expect_same_tensors(*model, *plain, 1e-6);
  });
}

TEST(ChangedModels, SetDataTakesWholesAndShards) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp(), plain = mlp();
    shard_by_layer(model, mesh);
    auto weight = model->parameters()[2], goal = plain->parameters()[2];
    auto loss = mean_squared(model, mine(some(0), mesh));
    weight.set_data(at::full({7, 7}, 0.5, at::kDouble)), goal.set_data(at::full({7, 7}, 0.5, at::kDouble));
    EXPECT_NE(error_text<c10::Error>([&] { loss.backward(); }).find("modified by an inplace operation"),
              std::string::npos);
    model->zero_grad();
    EXPECT_EQ(str(placements_of(weight)), "[S(0)]");
    mean_squared(model, mine(some(1), mesh)).backward(), mean_squared(plain, some(1)).backward();
    EXPECT_TRUE(torch::allclose(full_tensor(weight.grad()), goal.grad(), 1e-12, 1e-12));
    weight.set_data(distribute_tensor(at::ones({7, 7}, at::kDouble), mesh, {Replicate()}));
    EXPECT_EQ(str(placements_of(weight)), "[S(0)]");
    EXPECT_EQ(full_tensor(weight.detach()).sum().item<double>(), 49);
    auto text = error_text<c10::ValueError>([&] { weight.set_data(at::ones({7, 4}, at::kDouble)); });
    EXPECT_EQ(text.find("[fully_shard] \"weight\" of shape [7, 7] is given data of shape [7, 4]. Give a whole value, "
                        "or one laid out as"),
              0)
        << text;
  });
}

TEST(ChangedModels, OneOpMayUseParametersOfSeveralGroups) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp(), plain = mlp();
    FullyShardOptions options;
    options.reshard_after_forward = true;
    for (size_t i : {0, 2, 4}) fully_shard(*model[i], mesh, options);
    auto mixed = [](auto net,
                    const at::Tensor& x) {  // a weight of one layer with the bias of another, and two weights in one op
      auto p = net->parameters();
      auto hidden = torch::linear(x, p[0], p[3]);
      return torch::linear(hidden, torch::mm(p[4], p[2]), p[5]).square().mean();
    };
    for (int64_t step = 0; step < 3; ++step) {
      mixed(model, mine(some(step), mesh)).backward(), mixed(plain, some(step)).backward();
      for (size_t i : {0, 2, 3, 4, 5}) {
        EXPECT_TRUE(
            torch::allclose(full_tensor(model->parameters()[i].grad()), plain->parameters()[i].grad(), 1e-12, 1e-12))
            << i;
      }
    }
    for (auto& group : groups_in(*model)) EXPECT_FALSE(group.is_whole());
  });
}

TEST(ChangedModels, FrozenGroupsAreFreedInBackward) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp(), plain = mlp();
    for (size_t i : {2, 4}) {
      for (auto& p : model[i]->parameters()) p.set_requires_grad(false);
      for (auto& p : plain[i]->parameters()) p.set_requires_grad(false);
    }
    shard_by_layer(model, mesh);
    std::vector<bool> whole_at_the_end;
    auto hidden = model[0]->as<torch::nn::Linear>()->forward(mine(some(0), mesh));
    hidden.register_hook([&](const at::Tensor&) {
      for (auto& group : groups_in(*model)) whole_at_the_end.push_back(group.is_whole());
    });
    auto out = model[4]->as<torch::nn::Linear>()->forward(model[2]->as<torch::nn::Linear>()->forward(hidden));
    out.square().mean().backward();
    ASSERT_EQ(whole_at_the_end.size(), 3);
    EXPECT_FALSE(whole_at_the_end[2]);  // the last layer, when the first one is reached
    for (auto& group : groups_in(*model)) EXPECT_FALSE(group.is_whole());
  });
}

TEST(ChangedModels, AllFrozenTheyStillGiveGradientsOfInputs) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp(), plain = mlp();
    for (auto& p : model->parameters()) p.set_requires_grad(false);
    shard_by_layer(model, mesh);
    auto x = mine(some(0), mesh).requires_grad_(), all = some(0).requires_grad_();
    mean_squared(model, x).backward(), mean_squared(plain, all).backward();
    auto grad = full_tensor(from_local(x.grad(), mesh, {Shard(0)}));
    EXPECT_TRUE(torch::allclose(grad / mesh.size(), all.grad(), 1e-12, 1e-12));
    for (auto& group : groups_in(*model)) EXPECT_FALSE(group.is_whole());
  });
}

TEST(ChangedModels, AnErrorInAForwardWithHooksLeavesThemUsable) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = small_llama(false), plain = small_llama(false);
    for (auto& layer : *model->layers) fully_shard(*layer, mesh);
    fully_shard(*model, mesh);
    auto tokens = some(0).mul(1e4).to(at::kLong).remainder(17);
    auto options = torch::optim::SGDOptions(0.1).weight_decay(0.1);
    torch::optim::SGD own(model->parameters(), options), goal(plain->parameters(), options);
    model->forward(mine(tokens, mesh)).square().mean().backward(), plain->forward(tokens).square().mean().backward();
    auto handle = model->layers[0]->as<llama::Block>()->mlp->register_forward_hook(
        [](auto&, auto&, auto&) { TORCH_CHECK(false, "oh"); });
    EXPECT_THROW(model->forward(mine(tokens, mesh)), c10::Error);
    handle.remove();
    own.step(), goal.step();  // reads parameters beside their gradients: shards, not what the forward left
    expect_same_tensors(*model, *plain, 1e-11);
  });
}

TEST(ChangedModels, CopiesMayWaitForTheirAverage) {
  in_every_world([] {
    auto n = current_world().size();
    auto mesh = init_device_mesh(at::kCPU, {n % 2 ? n : 2, n % 2 ? 1 : n / 2}, {"copies", "shards"});
    auto model = mlp(), plain = mlp();
    shard_by_layer(model, mesh);
    for (int64_t round = 0; round < 2; ++round) {
      for (int64_t pass = 0; pass < 3; ++pass) {
        for (auto& group : groups_in(*model)) group.set_requires_all_reduce(pass == 2);
        CommDebugMode comms;
        mean_squared(model, mine(some(pass), all_ranks())).backward();
        mean_squared(plain, some(pass)).backward();
        EXPECT_EQ(comms.get_comm_counts()["all_reduce(avg)"], pass == 2 && mesh.size(0) > 1 ? 3 : 0);
        EXPECT_EQ(str(placements_of(model->parameters()[0].grad())), pass < 2 ? "[P(avg), S(0)]" : "[R, S(0)]");
      }
      for (size_t i = 0; i < 6; ++i) {
        EXPECT_TRUE(
            torch::allclose(full_tensor(model->parameters()[i].grad()), plain->parameters()[i].grad(), 1e-12, 1e-12))
            << i;
      }
      if (round == 0) model->zero_grad(), plain->zero_grad();
    }
  });
}

}  // namespace
}  // namespace intarsia::data_parallel_changed_models_test
