// Plain parameters, states and sums that ranks write to: one value per rank where they differ, one for all where they
// do not.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/nn/parallelize_module.h"
#include "intarsia/nn/styles.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "tests/support/compare.h"
#include "tests/support/error_text.h"
#include "tests/support/world.h"

namespace intarsia::per_rank_plain_tensors_test {
namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;

using Tensors = std::vector<at::Tensor>;
using Make = std::function<std::unique_ptr<optim::Optimizer>(const Tensors&)>;

template <class Optimizer, class Options>
Make of(Options options) {
  return [options](const Tensors& parameters) { return std::make_unique<Optimizer>(parameters, options); };
}

nn::Sequential plain_model() {
  torch::manual_seed(4);
  nn::Sequential model(nn::Linear(4, 3), nn::LayerNorm(nn::LayerNormOptions({3})), nn::GELU(), nn::Linear(3, 2));
  model->to(at::kDouble);
  return model;
}

void train(nn::Sequential& model, const at::Tensor& x, const Make& make, int steps = 3) {
  auto optimizer = make(model->parameters());
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    model->forward(x).pow(2).mean().backward();
    optimizer->step();
  }
}

// LBFGS looks at the value of its loss, which is not one number where the ranks differ.
const std::vector<std::pair<const char*, Make>> kOptimizers = {
    {"SGD", of<optim::SGD>(optim::SGDOptions(0.1))},
    {"SGD nesterov", of<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01))},
    {"Adam amsgrad", of<optim::Adam>(optim::AdamOptions(0.1).amsgrad(true).weight_decay(0.01))},
    {"AdamW", of<optim::AdamW>(optim::AdamWOptions(0.1).weight_decay(0.05))},
    {"RMSprop", of<optim::RMSprop>(optim::RMSpropOptions(0.1).centered(true).momentum(0.5))},
    {"Adagrad", of<optim::Adagrad>(optim::AdagradOptions(0.1).lr_decay(0.01))},
};

TEST(PlainTensors, ParametersTrainAsTheyDoOnEachRankAlone) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto x = lay_out(waves({7, 4}), mesh, {Shard(0)});
    for (auto& [name, make] : kOptimizers) {
      auto model = plain_model();
      auto weight = model->ptr<nn::LinearImpl>(0)->weight;  // the same tensor before and after
      train(model, to_local(x), make);
      for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
        auto alone = plain_model();
        train(alone, shards_of(x)[slot], make);
        for (size_t i = 0; i < model->parameters().size(); ++i) {
          auto found = value_at(model->parameters()[i], slot).detach();
          EXPECT_EQ(difference(found, alone->parameters()[i].detach(), 1e-12), "")
              << name << " " << i << " rank " << slot;
        }
        EXPECT_TRUE(value_at(weight, slot).equal(value_at(model->parameters()[0], slot)));
      }
    }
  });
}

TEST(PlainTensors, ParametersStayOneWhereTheRanksAreEqual) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto x = lay_out(waves({6, 4}), mesh, {Replicate()});
    for (auto& [name, make] : kOptimizers) {
      auto model = plain_model(), alone = plain_model();
      train(model, to_local(x), make);
      train(alone, waves({6, 4}), make);
      for (size_t i = 0; i < model->parameters().size(); ++i) {
        EXPECT_FALSE(is_per_rank(model->parameters()[i])) << name;
        EXPECT_EQ(difference(model->parameters()[i].detach(), alone->parameters()[i].detach(), 1e-12), "") << name;
      }
    }
  });
}

TEST(PlainTensors, RunningStatisticsAreThoseOfEachRankAlone) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto x = lay_out(waves({4 * n, 3}), mesh, {Shard(0)});
    auto batch_norm = [] {
      nn::BatchNorm1d norm(3);
      norm->to(at::kDouble);
      return norm;
    };
    auto norm = batch_norm();
    for (int step = 0; step < 2; ++step) norm->forward(to_local(x));
    for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
      auto alone = batch_norm();
      for (int step = 0; step < 2; ++step) alone->forward(shards_of(x)[slot]);
      EXPECT_EQ(difference(value_at(norm->running_mean, slot), alone->running_mean, 1e-12), "") << "rank " << slot;
      EXPECT_EQ(difference(value_at(norm->running_var, slot), alone->running_var, 1e-12), "") << "rank " << slot;
    }
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 2);
  });
}

TEST(PlainTensors, ANormBesideTensorParallelLayersTrains) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto build = [] {
      torch::manual_seed(4);
      nn::Sequential model(nn::LayerNorm(nn::LayerNormOptions({4})), nn::Linear(4, 8), nn::GELU(), nn::Linear(8, 4));
      model->to(at::kDouble);
      return model;
    };
    for (auto& [name, make] : kOptimizers) {
      auto model = build(), alone = build();
      parallelize_module(model, mesh, {{"1", ColwiseParallel()}, {"3", RowwiseParallel()}});
      train(model, waves({5, 4}), make);
      train(alone, waves({5, 4}), make);
      for (size_t i = 0; i < model->parameters().size(); ++i) {
        auto p = model->parameters()[i];
        EXPECT_FALSE(is_per_rank(p)) << name << " " << i;
        EXPECT_EQ(difference((is_dtensor(p) ? full_tensor(p) : p).detach(), alone->parameters()[i].detach(), 1e-9), "")
            << name << i;
      }
    }
  });
}

TEST(PlainTensors, SumsOfLocalLossesAreOnePerRank) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto x = lay_out(waves({7, 4}), mesh, {Shard(0)});
    auto total = torch::zeros({}, at::kDouble);
    auto table = torch::zeros({3, 2}, at::kDouble), row = table[1];
    auto local = to_local(x).requires_grad_();
    for (int i = 1; i < 3; ++i) total += local.pow(i).sum();
    row += local.detach().sum();
    total.backward();
    for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
      auto own = shards_of(x)[slot].detach();
      EXPECT_EQ(difference(value_at(total, slot).detach(), own.sum() + own.pow(2).sum(), 1e-12), "");
      EXPECT_EQ(difference(value_at(local.grad(), slot), 1 + 2 * own, 1e-12), "");
      EXPECT_EQ(difference(value_at(table, slot)[1], own.sum().expand({2}), 1e-12), "");
      EXPECT_EQ(value_at(table, slot)[0].abs().sum().item<double>(), 0);
    }
  });
}

TEST(PlainTensors, GradientsThatWerePlainGoOn) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto x = lay_out(waves({7, 4}), mesh, {Shard(0)});
    auto w = waves({4}).requires_grad_();
    (w * 3).sum().backward();
    (to_local(x) * w).sum().backward();
    for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
      EXPECT_EQ(difference(value_at(w.grad(), slot), shards_of(x)[slot].sum(0) + 3, 1e-12), "");
    }
  });
}

// A view that was taken before would show the values of one rank.
TEST(PlainTensors, MemoryThatOthersSeeIsNotWrittenByManyRanks) {
  auto world = simulate(2);
  auto local = to_local(lay_out(waves({4, 6}), init_device_mesh(at::kCPU, {2}), {Shard(0)}));
  auto plain = at::zeros({2, 6}, at::kDouble), alias = plain.detach();
  auto text = error_text<c10::ValueError>([&] { plain.add_(local); });
  EXPECT_EQ(text.find("[aten::add_.Tensor] writes a value per simulated rank into a plain tensor of shape [2, 6] whose "
                      "memory other "
                      "tensors see, too."),
            0)
      << text;
  EXPECT_FALSE(is_per_rank(plain) || alias.any().item<bool>());
  alias.reset();
  plain.add_(local);
  EXPECT_TRUE(values_of(plain)[1].equal(values_of(local)[1]));
}

TEST(PlainTensors, AFailedWriteLeavesThemPlain) {
  auto world = simulate(2);
  auto local = to_local(lay_out(waves({4, 6}), init_device_mesh(at::kCPU, {2}), {Shard(0)}));
  auto plain = at::zeros({3, 6}, at::kDouble);
  EXPECT_THROW(plain.add_(local), std::exception);
  EXPECT_FALSE(is_per_rank(plain) || plain.any().item<bool>());
}

// A composite op that uses its input twice, beside another use of it and of the weight: sums in another order have
// other bits.
TEST(PlainTensors, ThatACompositeOpUsesGetTheGradientsOfARankAlone) {
  auto world = simulate(2);
  torch::manual_seed(1);
  Shards inputs{torch::randn({64, 33}), torch::randn({64, 33})};
  auto run = [](at::Tensor x, at::Tensor weight) {
    x.requires_grad_(), weight.requires_grad_();
    auto h = x * 1.1;
    (h.sin() + torch::rms_norm(h, {33}, weight, 1e-5) * weight.cos()).square().sum().backward();
    return std::pair(x.grad(), weight.grad());
  };
  auto [of_inputs, of_weight] = run(per_rank({inputs[0].clone(), inputs[1].clone()}), torch::ones({33}));
  for (size_t rank = 0; rank < 2; ++rank) {
    auto [of_input, of_its_weight] = run(inputs[rank].clone(), torch::ones({33}));
    EXPECT_TRUE(at::equal(values_of(of_inputs)[rank], of_input));
    EXPECT_TRUE(at::equal(value_at(of_weight, rank), of_its_weight));
  }
}

}  // namespace
}  // namespace intarsia::per_rank_plain_tensors_test
