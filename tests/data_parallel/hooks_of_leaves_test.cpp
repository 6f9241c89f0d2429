// Hooks that the program puts on parameters see the gradient of all ranks.

#include <torch/csrc/autograd/variable.h>

#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "tests/data_parallel/models.h"
#include "tests/support/dealer.h"

namespace intarsia::data_parallel_hooks_of_leaves_test {
namespace {

at::Tensor rows(int64_t step) { return inputs(step, {24, 5}); }
at::Tensor loss_of(torch::nn::Sequential model, const at::Tensor& x) { return model->forward(x).square().mean(); }

void shard_layers(torch::nn::Sequential model, const DeviceMesh& mesh) {
  fully_shard(*model[0], mesh);
  fully_shard(*model[2], mesh);
  fully_shard(*model, mesh);
}

// An optimizer that steps in backward.
struct StepsInBackward final : torch::autograd::PostAccumulateGradHook {
  std::shared_ptr<torch::optim::Adam> optimizer;
  explicit StepsInBackward(const at::Tensor& leaf)
      : optimizer(std::make_shared<torch::optim::Adam>(std::vector<at::Tensor>{leaf}, 0.01)) {}
  void operator()(const torch::autograd::Variable&) override {
    optimizer->step();
    optimizer->zero_grad();
  }
};

void compare_with_steps_in_backward(const std::function<void(torch::nn::Sequential, const DeviceMesh&)>& prepare) {
  in_every_world([&] {
    auto mesh = all_ranks();
    auto model = mlp(), plain = mlp();
    prepare(model, mesh);
    for (auto& parameter : model->parameters()) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<StepsInBackward>(parameter));
    }
    torch::optim::Adam goal(plain->parameters(), 0.01);
    for (int64_t step = 0; step < 5; ++step) {
      loss_of(model, mine(rows(step), mesh)).backward();
      loss_of(plain, rows(step)).backward();
      goal.step(), goal.zero_grad();
    }
    expect_same_tensors(*model, *plain, 1e-12);
    for (auto& parameter : model->parameters())
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);  // hold the leaves
  });
}

TEST(HooksOfLeaves, AnOptimizerMayStepInBackwardOfAShardedModel) { compare_with_steps_in_backward(shard_layers); }

TEST(HooksOfLeaves, AnOptimizerMayStepInBackwardOfAReplicatedModel) {
  compare_with_steps_in_backward([](auto model, auto& mesh) { replicate(*model, mesh); });
}

TEST(HooksOfLeaves, TensorHooksGetAndChangeTheReducedShards) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp(), plain = mlp();
    auto weight = model[0]->as<torch::nn::Linear>()->weight, goal = plain[0]->as<torch::nn::Linear>()->weight;
    int64_t calls = 0;
    auto doubles = [&](const at::Tensor& grad) { return ++calls, grad * 2; };
    weight.register_hook(doubles);
    shard_layers(model, mesh);
    auto later = weight.register_hook([&](const at::Tensor& grad) { calls += is_dtensor(grad); });
    loss_of(model, mine(rows(0), mesh)).backward();
    loss_of(plain, rows(0)).backward();
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(difference(full_tensor(weight.grad()), goal.grad() * 2, 1e-12), "");
    weight.remove_hook(later);
    loss_of(model, mine(rows(0), mesh)).backward();
    EXPECT_EQ(calls, 3) << "a hook that was removed is not called";
  });
}

TEST(HooksOfLeaves, NamedPrefetchesChangeNoNumber) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp(), plain = mlp();
    shard_layers(model, mesh);
    auto outer = sharded_by(*model), first = sharded_by(*model[0]), second = sharded_by(*model[2]);
    first.set_forward_prefetch({second, outer});
    outer.set_backward_prefetch({second, first});
    for (int64_t step = 0; step < 3; ++step) {
      loss_of(model, mine(rows(step), mesh)).backward();
      loss_of(plain, rows(step)).backward();
    }
    for (size_t i = 0; i < plain->parameters().size(); ++i) {
      EXPECT_EQ(difference(full_tensor(model->parameters()[i].grad()), plain->parameters()[i].grad(), 1e-12), "");
    }
  });
}

}  // namespace
}  // namespace intarsia::data_parallel_hooks_of_leaves_test
