// fully_shard around tensor parallelism: parameters are cut over "tp" and then over "dp".

#include "intarsia/data_parallel/fully_shard/fully_shard.h"

#include "tests/data_parallel/models.h"

namespace intarsia::data_parallel_fully_shard_2d_test {
namespace {

DeviceMesh dp_by_tp() {
  auto n = current_world().size();
  return init_device_mesh(at::kCPU, {n % 2 ? n : 2, n % 2 ? 1 : n / 2}, {"dp", "tp"});
}

at::Tensor rows_of(const at::Tensor& batch, const DeviceMesh& mesh) {
  return to_local(distribute_tensor(batch, mesh, {Shard(0), Replicate()}, std::nullopt)).detach();
}

void compare_2d(int64_t hidden, const std::function<void(torch::nn::Sequential, const DeviceMesh&)>& wrap) {
  auto mesh = dp_by_tp();
  auto model = mlp(hidden), plain = mlp(hidden);
  parallelize_module(*model, mesh["tp"], {{"0", ColwiseParallel()}, {"2", RowwiseParallel()}});
  wrap(model, mesh["dp"]);
  torch::optim::AdamW own(model->parameters(), 0.01), goal(plain->parameters(), 0.01);
  for (int64_t step = 0; step < 20; ++step) {
    own.zero_grad(), goal.zero_grad();
    auto batch = inputs(step, {24, 5});
    auto expected = plain->forward(batch).square().mean(), loss = model->forward(rows_of(batch, mesh)).square().mean();
    expected.backward(), loss.backward();
    own.step(), goal.step();
  }
  for (auto& p : model->parameters()) EXPECT_TRUE(is_dtensor(p));
  expect_same_tensors(*model, *plain, 1e-11);
}

TEST(FullyShard2d, TrainsATensorParallelMlpAsOneProcessDoes) {
  for (int64_t hidden : {8, 7}) {  // divides, and does not
    in_every_world([&] {
      compare_2d(hidden, [](torch::nn::Sequential model, const DeviceMesh& mesh) {
        for (size_t i : {0, 2, 4}) fully_shard(*model[i], mesh);
      });
      compare_2d(hidden, [](torch::nn::Sequential model, const DeviceMesh& mesh) { fully_shard(*model, mesh); });
    });
  }
}

TEST(FullyShard2d, PlacementsShowBothCuts) {
  auto world = simulate(4);
  auto mesh = dp_by_tp();
  auto model = mlp(8);
  parallelize_module(*model, mesh["tp"], {{"0", ColwiseParallel()}, {"2", RowwiseParallel()}});
  fully_shard(*model, mesh["dp"]);
  EXPECT_EQ(str(layout_of(model->parameters()[0])), "[SS(0, 2), S(0)] on DeviceMesh(cpu, dp=2, tp=2)");
  EXPECT_EQ(str(layout_of(model->parameters()[2])), "[S(0), S(1)] on DeviceMesh(cpu, dp=2, tp=2)");
  auto odd = mlp(7);
  parallelize_module(*odd, mesh["tp"], {{"0", ColwiseParallel()}, {"2", RowwiseParallel()}});
  fully_shard(*odd, mesh["dp"]);
  EXPECT_EQ(str(layout_of(odd->parameters()[0])), "[SS(0, 2), S(0)] on DeviceMesh(cpu, dp=2, tp=2)");
}

TEST(FullyShard2d, TrainsATensorParallelLlamaAsOneProcessDoes) {
  in_every_world([] {
    auto mesh = dp_by_tp();
    auto model = small_llama(false), plain = small_llama(false);
    parallelize_module(*model, mesh["tp"], llama::plan(model->options));
    for (auto& layer : *model->layers) fully_shard(*layer, mesh["dp"]);
    fully_shard(*model, mesh["dp"]);
    torch::optim::SGD own(model->parameters(), 0.1), goal(plain->parameters(), 0.1);
    for (int64_t step = 0; step < 5; ++step) {
      own.zero_grad(), goal.zero_grad();
      auto tokens = inputs(step, {24, 8}).mul(1e4).to(at::kLong).remainder(17);
      plain->forward(tokens).square().mean().backward();
      auto logits = model->forward(rows_of(tokens, mesh));
      logits.square().mean().backward();
      own.step(), goal.step();
    }
    expect_same_tensors(*model, *plain, 1e-11);
  });
}

}  // namespace
}  // namespace intarsia::data_parallel_fully_shard_2d_test
