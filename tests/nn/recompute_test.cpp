// Segments that are computed again in the backward pass.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/intarsia.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia::nn_recompute_test {
namespace {

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : fc1(register_module("fc1", torch::nn::Linear(36, 64))),
        fc2(register_module("fc2", torch::nn::Linear(64, 36))) {}
  at::Tensor forward(const at::Tensor& x) {
    ++calls;
    return fc2(torch::dropout(torch::relu(fc1(x)), 0.3, true));
  }
  int calls = 0;
  torch::nn::Linear fc1, fc2;
};
TORCH_MODULE(Block);

struct Step {
  at::Tensor out, input_grad, weight_grad, after;
};

at::Tensor whole(const at::Tensor& t) { return is_dtensor(t) ? full_tensor(t) : t; }

Step step(Block& block, const at::Tensor& input, bool again) {
  auto x = input.detach().requires_grad_();
  block->zero_grad();
  torch::manual_seed(4);
  auto out = again ? recompute(block, x) : block->forward(x);
  torch::rand({7});
  out.pow(2).sum().backward();
  return {whole(out.detach()), whole(x.grad()), whole(block->fc1->weight.grad()).clone(),
          at::detail::getDefaultCPUGenerator().get_state()};
}

void expect_same_step(Block& block, const at::Tensor& x) {
  auto kept = step(block, x, false);
  block->calls = 0;
  auto again = step(block, x, true);
  EXPECT_EQ(block->calls, 2);
  EXPECT_TRUE(again.out.equal(kept.out));
  EXPECT_TRUE(again.input_grad.equal(kept.input_grad));
  EXPECT_TRUE(again.weight_grad.equal(kept.weight_grad));
  EXPECT_TRUE(again.after.equal(kept.after));
}

TEST(Checkpoint, OfPlainTensorsDrawsTheSameMask) {
  Block block;
  expect_same_step(block, at::linspace(-1, 1, 70 * 36).view({70, 36}));
}

TEST(Checkpoint, OfDistributedTensorsDrawsTheSameMask) {
  for_each_world({1, 2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto x = at::linspace(-1, 1, 70 * 36).view({70, 36});
    for (auto& cut : {Placement(Shard(0)), Placement(Shard(1)), Placement(Replicate())}) {
      Block block;
      distribute_module(*block, mesh);
      expect_same_step(block, lay_out(x, mesh, {cut}));
      RandomScope scope(mesh);
      auto y = recompute(block, lay_out(x, mesh, {cut}));
      y.sum().backward();
    }
  });
}

TEST(Checkpoint, OfModulesInDataParallelGivesTheSameSteps) {
  for_each_world({1, 2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto x = at::linspace(-1, 1, 70 * 36).view({70, 36});
    auto train = [&](bool shards, bool again) {
      torch::manual_seed(4);
      Block block;
      if (shards) fully_shard(*block, mesh);
      if (!shards) replicate(*block, mesh);
      torch::optim::SGD optimizer(block->parameters(), 0.1);
      for (int i = 0; i < 3; ++i) {
        optimizer.zero_grad();
        (again ? recompute(block, x) : block->forward(x)).pow(2).mean().backward();
        optimizer.step();
      }
      return whole(block->fc1->weight.detach()).clone();
    };
    for (bool shards : {false, true})
      EXPECT_TRUE(train(shards, true).equal(train(shards, false))) << shards << " " << n;
  });
}

TEST(Checkpoint, GivesGradientsToParametersWhoseInputNeedsNone) {
  Block block;
  auto x = at::ones({3, 36});
  recompute(block, x).sum().backward();
  EXPECT_TRUE(block->fc1->weight.grad().defined());
  EXPECT_FALSE(x.grad().defined());
}

TEST(Checkpoint, OfASegmentOfSeveralTensorsLeavesOutWhatIsNotUsed) {
  auto a = at::arange(3.).requires_grad_(), b = at::ones({3}).requires_grad_();
  auto results =
      recompute_segment([](auto& in) { return std::vector<at::Tensor>{in[0] * in[1], in[1].exp()}; }, {a, b});
  results[0].sum().backward();
  EXPECT_TRUE(a.grad().equal(b.detach()));
  EXPECT_TRUE(b.grad().equal(a.detach()));
}

TEST(Checkpoint, WithoutGradientsIsACall) {
  Block block;
  torch::NoGradGuard no_grad;
  EXPECT_FALSE(recompute(block, at::ones({3, 36})).requires_grad());
  EXPECT_EQ(block->calls, 1);
}

}  // namespace
}  // namespace intarsia::nn_recompute_test
