// One Linear for q, k and v: with fused = 3, local outputs hold matching heads of each.

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "intarsia/checkpoint/checkpoint.h"
#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "tests/checkpoint/folders.h"
#include "tests/nn/parallel_models.h"
#include "tests/support/compare.h"
#include "tests/support/error_text.h"
#include "tests/support/world.h"

namespace intarsia::nn_parallel_fused_test {
namespace {

// Attention with 4 heads of 2 features and one projection for q, k and v. Of a local output it sees some heads only.
struct AttentionImpl : torch::nn::Cloneable<AttentionImpl> {
  explicit AttentionImpl(int64_t heads) : heads(heads) { reset(); }
  void reset() override {
    qkv = register_module("qkv", torch::nn::Linear(5, 3 * 2 * heads));
    out = register_module("out", torch::nn::Linear(2 * heads, 5));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    auto parts = qkv(x).chunk(3, -1);
    for (auto& part : parts) part = part.view({x.size(0), x.size(1), -1, 2}).transpose(1, 2);
    auto scores = (parts[0].matmul(parts[1].transpose(-1, -2)) / std::sqrt(2)).softmax(-1);
    return out(scores.matmul(parts[2]).transpose(1, 2).flatten(2));
  }
  int64_t heads;
  torch::nn::Linear qkv{nullptr}, out{nullptr};
};
TORCH_MODULE(Attention);

Attention attention(int64_t heads, int seed = 3) {
  torch::manual_seed(seed);
  return Attention(heads);
}

const ParallelPlan& plan() {
  static const ParallelPlan plan = {{"qkv", ColwiseParallel({.fused = 3})}, {"out", RowwiseParallel()}};
  return plan;
}

void expect_same_step(Attention& parallel, Attention& plain, const std::function<at::Tensor(const at::Tensor&)>& mine) {
  torch::optim::SGD one(parallel->parameters(), 0.1), other(plain->parameters(), 0.1);
  for (int step = 0; step < 2; ++step) {
    auto x = waves({8, 3, 5}, 0.3 + step);
    one.zero_grad(), other.zero_grad();
    auto out = parallel(mine(x));
    out.square().mean().backward();
    auto expected = plain(x);
    expected.square().mean().backward();
    for (auto& item : plain->named_parameters()) {
      auto grad = parallel->named_parameters()[item.key()].grad();
      EXPECT_EQ(difference(full_tensor(grad), item.value().grad(), 1e-11), "") << item.key();
    }
    one.step(), other.step();
  }
}

TEST(FusedProjections, GiveEachRankMatchingHeads) {
  for_each_world({1, 2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n}, {"tp"});
    auto plain = attention(4), parallel = attention(4);
    parallelize_module(*parallel, mesh, plan());
    auto x = waves({2, 3, 5});
    EXPECT_EQ(difference(parallel(x).detach(), plain(x).detach(), 1e-12), "");
    expect_same_step(parallel, plain, [](auto& x) { return x; });
  });
}

TEST(FusedProjections, AreRightInEveryLayoutWhereOutputsStayDistributed) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n}, {"tp"});
    for (int64_t fused : {1, 3}) {
      auto plain = attention(4), parallel = attention(4);
      parallelize_module(
          *parallel, mesh,
          {{"qkv", ColwiseParallel({.use_local_output = false, .fused = fused})}, {"out", RowwiseParallel()}});
      expect_same_step(parallel, plain, [](auto& x) { return x; });
    }
  });
}

TEST(FusedProjections, StayInOrderInCheckpoints) {
  for_each_world({2}, [](int64_t n) {
    TestFolder folder("fused");
    auto mesh = init_device_mesh(at::kCPU, {n}, {"tp"});
    auto parallel = attention(4);
    parallelize_module(*parallel, mesh, plan());
    checkpoint::save(folder / "c", {{"", parallel}});
    auto plain = attention(4, 9);
    checkpoint::load(folder / "c", {{"", plain}});
    EXPECT_TRUE(plain->qkv->weight.equal(attention(4)->qkv->weight));
    EXPECT_TRUE(full_tensor(parallel->qkv->bias.detach()).equal(plain->qkv->bias));
  });
}

TEST(FusedProjections, WorkUnderFullyShard) {
  for_each_world({4}, [](int64_t) {
    auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    auto plain = attention(4), parallel = attention(4);
    parallelize_module(*parallel, mesh["tp"], plan());
    fully_shard(*parallel, mesh["dp"]);
    expect_same_step(parallel, plain, [&](auto& x) { return to_local(distribute_tensor(x, mesh["dp"], {Shard(0)})); });
  });
}

TEST(FusedProjections, ThatDoNotFitAreRefused) {
  for_each_world({4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n}, {"tp"});
    auto refusal = [&](torch::nn::Linear module, auto style) {
      return error_text<c10::ValueError>([&] { parallelize_module(module, mesh, style); });
    };
    EXPECT_EQ(refusal(torch::nn::Linear(5, 18), ColwiseParallel({.fused = 3})),
              "[ColwiseParallel] the module itself has 18 output features in 3 blocks, which 4 ranks cannot share "
              "evenly. Make them a "
              "multiple of 12.");
    EXPECT_EQ(refusal(torch::nn::Linear(5, 12), ColwiseParallel({.fused = 0})),
              "[ColwiseParallel] fused is 0 for the module itself, a torch::nn::LinearImpl. Give the number of "
              "projections that one "
              "torch::nn::Linear computes, such as 3 for q, k and v.");
    EXPECT_EQ(refusal(torch::nn::Linear(12, 5), RowwiseParallel({.fused = 3})),
              "[RowwiseParallel] fused is 3 for the module itself. Only output features are fused: use "
              "ColwiseParallel.");
  });
}

}  // namespace
}  // namespace intarsia::nn_parallel_fused_test
