// Scaled losses and schedules, on plain and distributed parameters, beside what PyTorch's GradScaler does.

#include <gtest/gtest.h>

#include <limits>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "intarsia/data_parallel/replicate/replicate.h"
#include "intarsia/nn/distribute_module.h"
#include "intarsia/nn/grad_scaler.h"
#include "intarsia/nn/lambda_lr.h"
#include "intarsia/tensor/dtensor.h"
#include "tests/support/compare.h"
#include "tests/support/error_text.h"
#include "tests/support/world.h"
#include "tests/support/worlds.h"

namespace intarsia::nn_grad_scaler_test {
namespace {

constexpr auto kInfinity = std::numeric_limits<float>::infinity();

torch::nn::Sequential model() {
  torch::manual_seed(5);
  return torch::nn::Sequential(torch::nn::Linear(5, 7), torch::nn::Linear(7, 3));
}

DeviceMesh all_ranks() { return init_device_mesh(at::kCPU, {current_world().size()}, {"dp"}); }

// Ways to lay a model out, and to feed it: rows of every rank alike, so that all have the gradients of one process.
struct Way {
  const char* name;
  std::function<void(torch::nn::Sequential&)> wrap;
  bool distributed;  // the input, too
};
const std::vector<Way> kWays = {
    {"plain", [](auto&) {}, false},
    {"replicate", [](auto& m) { replicate(*m, all_ranks()); }, false},
    {"fully_shard", [](auto& m) { fully_shard(*m, all_ranks()); }, false},
    {"distribute_module", [](auto& m) { distribute_module(*m, all_ranks()); }, true},
};

at::Tensor input(bool distributed, double step) {
  auto x = waves({8, 5}, step).to(at::kFloat);
  return distributed ? distribute_tensor(x, all_ranks(), {Shard(0)}) : x;  // in shards: gradients are pending sums
}

at::Tensor whole_of(const at::Tensor& t) { return is_dtensor(t) ? full_tensor(t) : t; }

TEST(GradScaler, StepsAsWithoutOne) {
  in_every_world([] {
    for (auto& way : kWays) {
      auto scaled = model(), plain = model();
      way.wrap(scaled);
      torch::optim::SGD one(scaled->parameters(), 0.1), other(plain->parameters(), 0.1);
      GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
      for (int step = 0; step < 3; ++step) {
        one.zero_grad(), other.zero_grad();
        scaler.scale(scaled->forward(input(way.distributed, 0.7 + step)).square().mean()).backward();
        plain->forward(input(false, 0.7 + step)).square().mean().backward();
        if (step == 1) scaler.unscale_(one);
        EXPECT_TRUE(scaler.step(one));
        scaler.update(), other.step();
      }
      EXPECT_EQ(scaler.get_scale(), 2048);
      for (auto& item : plain->named_parameters()) {
        EXPECT_TRUE(at::allclose(whole_of(scaled->named_parameters()[item.key()].detach()), item.value(), 1e-5, 1e-6))
            << way.name;
      }
    }
  });
}

TEST(GradScaler, SkipsTheStepOnAllRanksWhereOneRankHasAnInfiniteGradient) {
  in_every_world([] {
    auto n = current_world().size();
    for (auto bad : {kInfinity, -kInfinity, NAN}) {
      auto mesh = all_ranks();
      auto sharded = distribute_tensor(at::zeros({2 * n}), mesh, {Shard(0)}).requires_grad_();
      auto plain = at::zeros({2}).requires_grad_();
      auto gradient = at::ones({2 * n});
      gradient[-1] = bad;  // of the last rank
      sharded.mutable_grad() = distribute_tensor(gradient, mesh, {Shard(0)});
      plain.mutable_grad() = at::ones({2});
      torch::optim::SGD optimizer(std::vector<at::Tensor>{plain, sharded}, 0.1);
      GradScaler scaler;
      EXPECT_FALSE(scaler.step(optimizer));
      scaler.update();
      EXPECT_EQ(scaler.get_scale(), 32768);
      EXPECT_TRUE(full_tensor(sharded.detach()).equal(at::zeros({2 * n})));
      EXPECT_TRUE(plain.equal(at::zeros({2})));
    }
  });
}

// Two halves of the largest float: each is finite, and their sum is not.
TEST(GradScaler, SeesASumThatOverflows) {
  for_each_world({2}, [](int64_t) {
    auto mesh = all_ranks();
    auto p = distribute_tensor(at::zeros({1}), mesh, {Replicate()}).requires_grad_();
    p.mutable_grad() = from_local(at::full({1}, 3e38f), mesh, {Partial()});
    torch::optim::SGD optimizer(std::vector<at::Tensor>{p}, 0.1);
    EXPECT_FALSE(GradScaler().step(optimizer));
  });
}

TEST(GradScaler, ThatIsNotEnabledDoesNothing) {
  auto p = at::ones({1}).requires_grad_();
  torch::optim::SGD optimizer(std::vector<at::Tensor>{p}, 1);
  GradScaler scaler({.enabled = false});
  scaler.scale(p * 2).backward();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
  EXPECT_EQ(p.item<float>(), -1);
  EXPECT_EQ(scaler.get_scale(), 1);
}

TEST(GradScaler, CallsInAWrongOrderAreErrors) {
  auto p = at::ones({1}).requires_grad_();
  p.mutable_grad() = at::ones({1});
  torch::optim::SGD optimizer(std::vector<at::Tensor>{p}, 1);
  GradScaler scaler;
  EXPECT_EQ(error_text<c10::Error>([&] { scaler.update(); }),
            "[GradScaler::update] no optimizer has been unscaled or stepped since the last update(). Call step() "
            "first.");
  scaler.unscale_(optimizer);
  EXPECT_EQ(error_text<c10::Error>([&] { scaler.unscale_(optimizer); }),
            "[GradScaler::unscale_] this optimizer's gradients are unscaled already. Call it once before update().");
  scaler.step(optimizer);
  EXPECT_EQ(error_text<c10::Error>([&] { scaler.unscale_(optimizer); }),
            "[GradScaler::unscale_] comes after step(). Call it before, or update() first.");
  EXPECT_EQ(error_text<c10::Error>([&] { scaler.step(optimizer); }),
            "[GradScaler::step] this optimizer has stepped already. Call update() first.");
  EXPECT_EQ(error_text<c10::ValueError>([&] { scaler.update(-1); }),
            "[GradScaler::update] the scale cannot be -1. Give one above 0.");
  EXPECT_EQ(error_text<c10::ValueError>([] { GradScaler({.growth_factor = 1}); }),
            "[GradScaler] a scale of 65536 that grows by 1 after 2000 steps and shrinks by 0.5. Give a scale above 0, "
            "a growth above 1, an "
            "interval above 0, and a backoff between 0 and 1.");
}

TEST(GradScaler, AGradientInHalfIsAnErrorOnAllRanks) {
  in_every_world([] {
    bool mine = current_world().hosted().back() == current_world().size() - 1;  // the last rank's
    auto p = at::ones({1}, mine ? at::kHalf : at::kFloat).requires_grad_();
    p.mutable_grad() = at::ones({1}, p.options());
    torch::optim::SGD optimizer(std::vector<at::Tensor>{p}, 1);
    GradScaler scaler;
    EXPECT_EQ(error_text<c10::Error>([&] { scaler.step(optimizer); }),
              mine ? "[GradScaler::unscale_] the gradient of parameter 0 is Half, whose range is too small for "
                     "unscaled gradients. Keep "
                     "parameters in Float, and compute in Half."
                   : "[GradScaler::unscale_] failed on another rank, whose error says why.");
  });
}

TEST(LambdaLR, IsTheRateTimesAFunctionOfTheStep) {
  auto p = at::ones({1}).requires_grad_();
  torch::optim::SGD optimizer(std::vector<at::Tensor>{p}, 0.5);
  LambdaLR schedule(optimizer, [](int64_t step) { return 1. / static_cast<double>(step + 1); });
  for (int step = 0; step < 4; ++step, schedule.step()) EXPECT_DOUBLE_EQ(schedule.get_last_lr()[0], 0.5 / (step + 1));
  EXPECT_EQ(error_text<c10::ValueError>([&] { LambdaLR(optimizer, nullptr); }),
            "[LambdaLR] there is no function from a step to a factor. Give one.");
}

TEST(LambdaLR, WarmsUpAndFollowsACosine) {
  EXPECT_EQ(warmup_cosine(0, 4, 12), 0);
  EXPECT_EQ(warmup_cosine(3, 4, 12), 0.75);
  EXPECT_EQ(warmup_cosine(4, 4, 12), 1);
  EXPECT_NEAR(warmup_cosine(8, 4, 12, 0.2), 0.6, 1e-12);
  EXPECT_NEAR(warmup_cosine(20, 4, 12, 0.2), 0.2, 1e-12);
  EXPECT_EQ(error_text<c10::ValueError>([] { warmup_cosine(0, 5, 5); }),
            "[warmup_cosine] 5 steps of warmup do not fit into 5 steps. Give fewer.");
}

}  // namespace
}  // namespace intarsia::nn_grad_scaler_test
