// What a training has beside tensors, as items: schedules, scalers, generators, samplers; and resuming from the newest
// checkpoint.

#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/data/samplers/distributed.h>
#include <torch/data/samplers/random.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include "intarsia/checkpoint/checkpoint.h"
#include "intarsia/nn/grad_scaler.h"
#include "intarsia/nn/lambda_lr.h"
#include "tests/checkpoint/folders.h"
#include "tests/support/error_text.h"
#include "tests/support/worlds.h"

namespace intarsia::checkpoint_save_states_test {
namespace {

using torch::data::samplers::DistributedRandomSampler;
using torch::data::samplers::RandomSampler;

torch::optim::SGD sgd(double rate) {
  return torch::optim::SGD(std::vector<at::Tensor>{at::ones({1}).requires_grad_()}, rate);
}
double rate_of(torch::optim::Optimizer& optimizer) { return optimizer.param_groups()[0].options().get_lr(); }

TEST(CheckpointStates, ASchedulerGoesOn) {
  in_every_world([] {
    TestFolder folder("schedule");
    auto optimizer = sgd(0.8), again = sgd(0.1);
    auto halving = [](int64_t step) { return std::pow(0.5, step); };
    LambdaLR schedule(optimizer, halving), schedule_again(again, halving);
    torch::optim::StepLR steps(optimizer, 3, 0.1), steps_again(again, 3, 0.1);
    for (int i = 0; i < 2; ++i) schedule.step(), steps.step();
    checkpoint::save(folder / "c", {{"optimizer", optimizer}, {"schedule", schedule}, {"steps", steps}});
    checkpoint::load(folder / "c", {{"optimizer", again}, {"schedule", schedule_again}, {"steps", steps_again}});
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(rate_of(again), rate_of(optimizer)) << i;
      for (auto* one : {&schedule, &schedule_again}) one->step();
      for (auto* one : {&steps, &steps_again}) one->step();
    }
    EXPECT_EQ(schedule_again.base_lrs()[0], 0.8);
  });
}

TEST(CheckpointStates, AScalerGoesOn) {
  in_every_world([] {
    TestFolder folder("scaler");
    GradScaler scaler({.init_scale = 8}), again;
    scaler.set_state({16, 7});
    checkpoint::save(folder / "c", {{"scaler", scaler}});
    checkpoint::load(folder / "c", {{"scaler", again}});
    EXPECT_EQ(again.get_scale(), 16);
    EXPECT_EQ(again.state().growth_tracker, 7);
  });
}

TEST(CheckpointStates, AGeneratorGoesOnOnAnyNumberOfRanks) {
  if (process_world()) GTEST_SKIP() << "simulates other numbers of ranks itself";
  for (int64_t then : {1, 2, 3}) {
    TestFolder folder("generator");
    auto generator = at::detail::createCPUGenerator(4), again = at::detail::createCPUGenerator(5);
    at::rand({7}, generator);
    auto save = [&] {
      auto world = simulate(2);
      checkpoint::save(folder / "c", {{"generator", generator}});
    };
    save();
    auto world = simulate(then);
    checkpoint::load(folder / "c", {{"generator", again}});
    EXPECT_TRUE(at::rand({5}, again).equal(at::rand({5}, generator)));
  }
}

TEST(CheckpointStates, GeneratorsInDifferentStatesAreEachRanksOwn) {
  if (!process_world()) GTEST_SKIP() << "simulated ranks share one state";
  TestFolder folder("generators");
  auto rank = current_world().hosted()[0];
  auto generator = at::detail::createCPUGenerator(4 + rank), again = at::detail::createCPUGenerator(50);
  checkpoint::save(folder / "c", {{"generator", generator}});
  checkpoint::load(folder / "c", {{"generator", again}});
  EXPECT_TRUE(at::rand({5}, again).equal(at::rand({5}, generator)));
  TestFolder::meet();
  auto world = simulate(current_world().size() + 1);
  auto n = std::to_string(process_world()->size());
  EXPECT_EQ(error_text<c10::ValueError>([&] { checkpoint::load(folder / "c", {{"generator", again}}); }),
            "[checkpoint::load] \"generator.state\" has a state for each of " + n +
                " ranks, which differ, and there are " + std::to_string(current_world().size()) +
                " ranks now. Load it on " + n + " ranks, or leave it out.");
}

TEST(CheckpointStates, ASamplerGoesOnInTheMiddleOfAnEpoch) {
  in_every_world([] {
    TestFolder folder("sampler");
    torch::manual_seed(3);
    RandomSampler sampler(11), again(11);
    sampler.reset(), again.reset();
    sampler.next(4);
    checkpoint::save(folder / "c", {{"sampler", sampler}});
    checkpoint::load(folder / "c", {{"sampler", again}});
    EXPECT_EQ(again.index(), 4u);
    EXPECT_EQ(*again.next(20), *sampler.next(20));
  });
}

TEST(CheckpointStates, ASamplerOfARanksPartGoesOnWithThatPart) {
  in_every_world([] {
    TestFolder folder("part");
    size_t n = current_world().size(), rank = current_world().hosted().size() == 1 ? current_world().hosted()[0] : 0;
    DistributedRandomSampler sampler(23, n, rank), again(23, n, rank);
    sampler.set_epoch(2);
    sampler.reset();
    sampler.next(1);
    checkpoint::save(folder / "c", {{"sampler", sampler}});
    checkpoint::load(folder / "c", {{"sampler", again}});
    EXPECT_EQ(again.epoch(), 2u);
    EXPECT_EQ(again.next(20), sampler.next(20));
  });
}

TEST(CheckpointStates, WhatIsMissingIsListed) {
  in_every_world([] {
    TestFolder folder("missing_states");
    GradScaler scaler;
    auto generator = at::detail::createCPUGenerator(4);
    checkpoint::save(folder / "c", {{"step", 1}});
    checkpoint::Items items = {{"scaler", scaler}, {"generator", generator}};
    EXPECT_EQ(error_text<c10::Error>([&] { checkpoint::load(folder / "c", items); }),
              "[checkpoint::load] " + (folder / "c") +
                  " does not fit what is loaded:\n  missing in the checkpoint (3):\n    "
                  "generator.state\n    scaler.scale\n    scaler.growth_tracker\nRename with LoadOptions::rename, or "
                  "load what fits with "
                  "strict = false.");
  });
}

TEST(CheckpointResume, GoesOnFromTheNewestCheckpointIfThereIsOne) {
  in_every_world([] {
    TestFolder folder("resume");
    auto x = at::zeros({2});
    EXPECT_FALSE(checkpoint::resume(folder / "runs", {{"x", x}}));
    for (int step : {1, 2}) {
      checkpoint::save(folder / ("runs/" + std::to_string(step)), {{"x", at::full({2}, step)}, {"step", step}});
    }
    TestFolder::meet();
    if (TestFolder::leads()) std::filesystem::create_directories(folder / "runs/3.saving-abc");
    TestFolder::meet();
    EXPECT_EQ(checkpoint::resume(folder / "runs", {{"x", x}}).value().integer("step"), 2);
    EXPECT_TRUE(x.equal(at::full({2}, 2.f)));
  });
}

TEST(CheckpointResume, RanksThatSeeDifferentFoldersAreAnErrorOnAll) {
  if (!process_world()) GTEST_SKIP() << "simulated ranks see the same folders";
  for_each_world({2}, [](int64_t) {
    TestFolder folder("resume_apart");
    checkpoint::save(folder / "runs/1", {{"step", 1}});
    auto place = folder / (current_world().hosted()[0] ? "elsewhere" : "runs");
    EXPECT_EQ(error_text<c10::ValueError>([&] { checkpoint::resume(place, {}); }),
              "[checkpoint::resume] the newest checkpoint is " + (folder / "runs/1") +
                  " on rank 0 and none on rank 1. All ranks have to name one folder, and to see the same files.");
  });
}

}  // namespace
}  // namespace intarsia::checkpoint_save_states_test
