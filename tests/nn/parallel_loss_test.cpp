// Cross entropy over classes that are cut, after a column-parallel output layer: the logits are never brought together.
#include "tests/nn/parallel_models.h"
#include "tests/support/world.h"

namespace intarsia::nn_parallel_loss_test {
namespace {

namespace F = torch::nn::functional;
constexpr int64_t kTokens = 9, kFeatures = 6, kClasses = 10;  // over 4 ranks: 3, 3, 3, 1 classes

template <class Body>
void on_four_ranks(Body body) {
  for_each_world({4}, [&](int64_t n) { body(init_device_mesh(at::kCPU, {n}, {"tp"})); });
}

struct Case {
  bool ignore, weights;
  double smoothing;
  F::CrossEntropyFuncOptions::reduction_t reduction;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (bool ignore : {false, true}) {
    for (bool weights : {false, true}) {
      for (double smoothing : {0.0, 0.1}) {
        all.push_back({ignore, weights, smoothing, torch::kMean});
        all.push_back({ignore, weights, smoothing, torch::kSum});
        all.push_back({ignore, weights, smoothing, torch::kNone});
      }
    }
  }
  return all;
}

torch::nn::Linear head() {
  torch::manual_seed(0);
  return torch::nn::Linear(kFeatures, kClasses);
}

TEST(LossParallel, GivesLossAndGradientsOfOneRankWithoutTheLogits) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (auto& [ignore, weights, smoothing, reduction] : cases()) {
      SCOPED_TRACE(c10::str("ignore ", ignore, " weights ", weights, " smoothing ", smoothing, " ", reduction.index()));
      torch::manual_seed(1);
      auto x = torch::randn({kTokens, kFeatures}), target = torch::randint(kClasses, {kTokens});
      auto weight = torch::rand({kClasses}) + 0.5;
      target[2] = ignore ? -7 : 9;
      auto loss_of = [&](torch::nn::Linear& model, const at::Tensor& targets, const at::Tensor& weight) {
        auto options = F::CrossEntropyFuncOptions().reduction(reduction).label_smoothing(smoothing);
        if (ignore) options.ignore_index(-7);
        if (weights) options.weight(weight);
        return F::cross_entropy(model(x), targets, options);
      };
      auto plain = head(), model = head();
      parallelize_module(model, mesh, ColwiseParallel({.use_local_output = false}));
      auto cut_target = distribute_tensor(target, mesh, {Replicate()}),
           cut_weight = distribute_tensor(weight, mesh, {Replicate()});
      auto expected = loss_of(plain, target, weight);
      CommDebugMode comms;
      auto loss = loss_of(model, cut_target, cut_weight);
      loss.sum().backward();
      expected.sum().backward();
      for (auto& event : comms.events()) {  // at most two numbers per token
        EXPECT_EQ(event.kind.substr(0, 10), "all_reduce") << str(event);
        EXPECT_LE(event.sent, 2 * 4 * kTokens * 3 / 4) << str(event);
      }
      EXPECT_TRUE(comms.fallbacks().empty());
      comms.exit();
      expect_close(loss, expected.detach(), "loss");
      compare_params(*plain, *model, true);
    }
  });
}

TEST(LossParallel, SendsOneNumberPerTokenThreeTimes) {
  on_four_ranks([](const DeviceMesh& mesh) {
    auto model = head();
    parallelize_module(model, mesh, ColwiseParallel({.use_local_output = false}));
    auto target = distribute_tensor(torch::arange(kTokens), mesh, {Replicate()});
    CommDebugMode comms;
    auto loss = F::cross_entropy(model(torch::ones({kTokens, kFeatures})), target);
    EXPECT_EQ(comms.text(), "all_reduce(max) tp 54B\nall_reduce(sum) tp 54B\nall_reduce(sum) tp 6B\n");
    comms.enter();
    loss.backward();
    EXPECT_EQ(comms.text(), "all_reduce(sum) tp 54B\n");
  });
}

TEST(LossParallel, TakesSequencesWithClassesInTheMiddle) {
  on_four_ranks([](const DeviceMesh& mesh) {
    torch::manual_seed(1);
    auto x = torch::randn({2, 5, kFeatures}), target = torch::randint(kClasses, {2, 5});
    auto plain = head(), model = head();
    parallelize_module(model, mesh, ColwiseParallel({.use_local_output = false}));
    auto expected = F::cross_entropy(plain(x).transpose(1, 2), target);
    auto loss = F::cross_entropy(model(x).transpose(1, 2), distribute_tensor(target, mesh, {Replicate()}));
    expect_close(loss, expected.detach(), "loss");
    expected.backward(), loss.backward();
    compare_params(*plain, *model, true);
  });
}

}  // namespace
}  // namespace intarsia::nn_parallel_loss_test
