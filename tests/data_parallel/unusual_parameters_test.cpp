// Parameters that are not contiguous, of several dtypes, empty or without dims, and what programs do with parameters
// besides training.

#include "tests/data_parallel/trainees.h"

namespace intarsia::data_parallel_unusual_parameters_test {
namespace {

struct OddImpl : torch::nn::Module {
  OddImpl() {
    auto numbers = torch::arange(12, at::kDouble).sin();
    turned = register_parameter("turned", numbers.view({3, 4}).t());
    single = register_parameter("single", numbers.narrow(0, 2, 3).to(at::kFloat));
    half = register_parameter("half", numbers.narrow(0, 5, 3).to(at::kBFloat16));
    complex = register_parameter("complex", torch::complex(numbers.narrow(0, 0, 3), numbers.narrow(0, 3, 3)));
    nothing = register_parameter("nothing", torch::zeros({0, 3}, at::kDouble));
    scale = register_parameter("scale", torch::tensor(0.7, at::kDouble));
    count = register_parameter("count", torch::tensor(3), false);
  }
  at::Tensor forward(const at::Tensor& x) {
    auto y = x.mm(turned) * single.to(at::kDouble) + half.to(at::kDouble) + nothing.sum(0);
    return (y * scale * complex).abs() / count;
  }
  at::Tensor turned, single, half, complex, nothing, scale, count;
};

using Sharding = std::function<void(torch::nn::Module&)>;

std::vector<Sharding> shardings() {
  FullyShardOptions columns;
  columns.shard_dim = [](auto&, const at::Tensor& p) {
    return p.dim() ? std::optional<int64_t>(p.dim() - 1) : std::nullopt;
  };
  return {[](auto& m) { fully_shard(m, all_ranks()); }, [=](auto& m) { fully_shard(m, all_ranks(), columns); },
          [](auto& m) { replicate(m, all_ranks()); }};
}

TEST(UnusualParameters, OfAllKindsAreServedTogether) {
  in_every_world([] {
    for (auto& shard : shardings()) {
      OddImpl model, plain;
      shard(model);
      auto n = current_world().size();
      for (int64_t step = 0; step < 2; ++step) {
        auto x = inputs(step, {2 * n, 4});
        model.forward(mine(x, all_ranks())).mean().backward();
        plain.forward(x).mean().backward();
      }
      for (auto& item : plain.named_parameters()) {
        auto grad = model.named_parameters()[item.key()].grad();
        ASSERT_EQ(grad.defined(), item.value().grad().defined()) << item.key();
        if (!grad.defined()) continue;
        auto tolerance = item.value().scalar_type() == at::kBFloat16 ? 2e-2
                         : item.value().scalar_type() == at::kFloat  ? 1e-6
                                                                     : 1e-12;
        EXPECT_EQ(grad.scalar_type(), item.value().scalar_type()) << item.key();
        EXPECT_TRUE(torch::allclose(whole(grad), item.value().grad(), tolerance, tolerance)) << item.key();
      }
    }
  });
}

// A penalty on all parameters in the loss, averages of parameters, and values drawn anew after the model was sharded.
TEST(UnusualParameters, MayBeReadAndWrittenBesidesTraining) {
  in_every_world([] {
    auto own = mlp_trainee(at::kDouble), plain = mlp_trainee(at::kDouble);
    sharded()(own);
    auto mesh = all_ranks();
    std::vector<at::Tensor> averages[2];
    for (auto* one : {&own, &plain}) {
      auto optimizer = optimizer_for(*one);
      torch::NoGradGuard no_grad;
      torch::manual_seed(11);
      for (auto& p : one->module->parameters()) torch::nn::init::uniform_(p, -0.5, 0.5);
      auto& means = averages[one == &plain];
      for (auto& p : one->module->parameters()) means.push_back(p.detach().clone());
      for (int64_t step = 0; step < 3; ++step) {
        at::AutoGradMode grad(true);
        optimizer.zero_grad();
        auto batch = plain.batch(step, 2 * mesh.size());
        auto loss = one->loss(one == &own ? mine(batch, mesh) : batch);
        for (auto& p : one->module->parameters()) loss = loss + 0.01 * p.square().sum();
        loss.backward();
        optimizer.step();
        at::NoGradGuard averaging;
        for (size_t i = 0; i < means.size(); ++i) means[i].lerp_(one->module->parameters()[i].detach(), 0.1);
      }
    }
    expect_same_tensors(*own.module, *plain.module);
    for (size_t i = 0; i < averages[0].size(); ++i)
      EXPECT_TRUE(torch::allclose(whole(averages[0][i]), averages[1][i], 1e-12, 1e-12));
  });
}

// As a gradient scaler asks, which then skips the step on all ranks.
TEST(UnusualParameters, AGradientThatOverflowsOnOneRankIsSeenByAll) {
  in_every_world([] {
    auto trainee = mlp_trainee(at::kFloat);
    sharded()(trainee);
    auto mesh = all_ranks();
    for (float bad : {1.f, std::numeric_limits<float>::infinity()}) {
      std::vector<at::Tensor> gradients;
      for (auto& p : trainee.module->parameters()) {
        auto grad = torch::ones(p.sizes());
        if (gradients.empty()) grad[-1].fill_(bad);  // a row of the last rank that has one
        gradients.push_back(distribute_tensor(grad, mesh, {Shard(0)}));
      }
      auto found = torch::zeros({1}), scale = torch::full({1}, 0.5f);
      at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, scale);
      for (size_t slot = 0; slot < current_world().hosted().size(); ++slot) {
        EXPECT_EQ(value_at(found, slot).item<float>(), bad == 1.f ? 0 : 1);
      }
      EXPECT_EQ(full_tensor(gradients[1])[0].item<float>(), 0.5f);
    }
  });
}

TEST(UnusualParameters, TwoModelsMayTakeTurns) {
  in_every_world([] {
    auto n = current_world().size();
    Trainee own[2] = {mlp_trainee(at::kDouble), untied_llama(at::kDouble)};
    Trainee plain[2] = {mlp_trainee(at::kDouble), untied_llama(at::kDouble)};
    for (auto& trainee : own) sharded()(trainee);
    for (int64_t step = 0; step < 3; ++step) {
      at::Tensor losses[2], goals[2];
      for (int m : {0, 1}) losses[m] = own[m].loss(mine(own[m].batch(step, n), all_ranks()));
      for (int m : {0, 1}) goals[m] = plain[m].loss(plain[m].batch(step, n));
      if (step == 1) (losses[0] + losses[1]).backward(), (goals[0] + goals[1]).backward();
      if (step != 1) losses[0].backward(), losses[1].backward(), goals[0].backward(), goals[1].backward();
    }
    for (int m : {0, 1}) {
      for (auto& item : plain[m].module->named_parameters()) {
        auto grad = own[m].module->named_parameters()[item.key()].grad();
        EXPECT_TRUE(torch::allclose(full_tensor(grad), item.value().grad(), 1e-11, 1e-11)) << item.key();
      }
    }
  });
}

}  // namespace
}  // namespace intarsia::data_parallel_unusual_parameters_test
