// Training on distributed parameters equals training on plain ones, with ordinary modules and optimizers.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/lay_out.h"
#include "tests/support/worlds.h"

namespace intarsia::tensor_train_test {
namespace {

DeviceMesh line() { return init_device_mesh(at::kCPU, {current_world().size()}); }

struct Net : torch::nn::Module {
  Net() {
    torch::manual_seed(1);
    first = register_module("first", torch::nn::Linear(6, 10));
    second = register_module("second", torch::nn::Linear(10, 3));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::relu(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

at::Tensor batch() { return at::sin(at::arange(5 * 6, at::kDouble)).reshape({5, 6}); }
at::Tensor labels() { return at::arange(5) % 3; }

using MakeOptimizer = std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

const std::vector<std::pair<const char*, MakeOptimizer>> kOptimizers = {
    {"SGD", [](auto p) { return std::make_shared<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1)); }},
    {"SGD with momentum",
     [](auto p) {
       return std::make_shared<torch::optim::SGD>(
           p, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01).nesterov(true));
     }},
    {"Adam",
     [](auto p) { return std::make_shared<torch::optim::Adam>(p, torch::optim::AdamOptions(0.05).amsgrad(true)); }},
    {"AdamW", [](auto p) { return std::make_shared<torch::optim::AdamW>(p, torch::optim::AdamWOptions(0.05)); }},
};

std::vector<double> losses(Net& net, torch::optim::Optimizer& optimizer, const at::Tensor& x, const at::Tensor& y) {
  std::vector<double> result;
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    auto loss = torch::cross_entropy_loss(net.forward(x), y);
    loss.backward();
    torch::nn::utils::clip_grad_norm_(net.parameters(), 0.5);
    optimizer.step();
    result.push_back((is_dtensor(loss) ? full_tensor(loss) : loss).item<double>());
  }
  return result;
}

// Column-parallel then row-parallel, batch-parallel, weights cut by FSDP: [first weight, bias, second weight, bias,
// batch].
const std::vector<std::vector<const char*>> kLayouts = {
    {"[S(0)]", "[S(0)]", "[S(1)]", "[R]", "[R]"},
    {"[R]", "[R]", "[R]", "[R]", "[S(0)]"},
    {"[S(0)]", "[S(0)]", "[S(0)]", "[S(0)]", "[S(0)]"},
};

TEST(Training, EqualsPlainTrainingStepByStep) {
  for (auto& [name, make] : kOptimizers) {
    Net plain;
    auto plain_optimizer = make(plain.parameters());
    auto expected = losses(plain, *plain_optimizer, batch(), labels());
    in_every_world([&, name = name, make = make] {
      for (auto& layout : kLayouts) {
        SCOPED_TRACE(std::string(name) + " with weights " + layout[0] + layout[2] + " and batch " + layout[4]);
        Net net;
        auto optimizer = make(net.parameters());  // made before: it must see the parameters change
        size_t i = 0;
        for (auto& p : net.parameters())
          p.set_data(distribute_tensor(p.detach(), line(), parse_placements(layout[i++])));
        EXPECT_TRUE(is_dtensor(net.first->weight));
        auto actual = losses(net, *optimizer, lay_out(batch(), line(), parse_placements(layout[4])),
                             lay_out(labels(), line(), parse_placements(layout[4])));
        for (size_t step = 0; step < expected.size(); ++step) EXPECT_NEAR(actual[step], expected[step], 1e-9);
        auto weights = plain.parameters();
        i = 0;
        for (auto& p : net.parameters()) {
          EXPECT_EQ(str(placements_of(p)), layout[i]);
          EXPECT_EQ(difference(full_tensor(p.detach()), weights[i++].detach(), 1e-9), "");
        }
      }
    });
  }
}

TEST(Training, AParameterMayChangeItsLayoutBetweenSteps) {
  in_every_world([] {
    auto w = lay_out(batch(), line(), {Shard(0)}).requires_grad_();
    torch::optim::SGD optimizer({w}, torch::optim::SGDOptions(0.1));
    auto plain = batch().requires_grad_();
    torch::optim::SGD reference({plain}, torch::optim::SGDOptions(0.1));
    for (auto placement : {Placement(Shard(0)), Placement(Replicate()), Placement(Shard(1))}) {
      w.set_data(redistribute(w.detach(), {placement}));
      optimizer.zero_grad(), reference.zero_grad();
      full_tensor((w * w).sum()).backward(), (plain * plain).sum().backward();
      optimizer.step(), reference.step();
      EXPECT_EQ(difference(full_tensor(w.detach()), plain.detach(), 1e-12), "");
    }
  });
}

}  // namespace
}  // namespace intarsia::tensor_train_test
