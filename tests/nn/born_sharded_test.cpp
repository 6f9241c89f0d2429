// Models whose parameters are distributed from birth.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/intarsia.h"
#include "tests/support/error_text.h"
#include "tests/support/world.h"

namespace intarsia::nn_born_sharded_test {
namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    table = register_module("table", torch::nn::Embedding(70, 36));
    fc1 = register_module("fc1", torch::nn::Linear(36, 130));
    fc2 = register_module("fc2", torch::nn::Linear(130, 36));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({36})));
    conv = register_module("conv", torch::nn::Conv1d(6, 5, 3));
    scale = register_parameter("scale", torch::randn({36}) * 0.1);
    steps = register_buffer("steps", torch::arange(36).to(torch::kFloat) / 36);
  }
  at::Tensor forward(const at::Tensor& x) { return norm(fc2(torch::relu(fc1(table(x) + steps * scale)))); }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Conv1d conv{nullptr};
  at::Tensor scale, steps;
};
TORCH_MODULE(Net);

void expect_equal_values(torch::nn::Module& model, torch::nn::Module& plain) {
  auto born = model.named_parameters(), made = plain.named_parameters();
  ASSERT_EQ(born.size(), made.size());
  for (auto& item : made) {
    auto& mine = born[item.key()];
    EXPECT_TRUE(mine.requires_grad() && mine.is_leaf()) << item.key();
    auto whole = is_dtensor(mine) ? full_tensor(mine.detach()) : mine;
    EXPECT_TRUE(whole.equal(item.value())) << item.key();
  }
}

at::Tensor state() { return at::detail::getDefaultCPUGenerator().get_state(); }

TEST(BornSharded, AModelHasTheNumbersOfOneMadePlainly) {
  for_each_world({1, 2, 3, 4, 8}, [](int64_t n) {
    for (auto& shape : mesh_shapes(n)) {
      auto mesh = init_device_mesh(at::kCPU, shape);
      torch::manual_seed(3);
      Net plain;
      auto after = state();
      torch::manual_seed(3);
      BornSharded scope(mesh);
      Net model;
      scope.finish(model);
      expect_equal_values(*model, *plain);
      EXPECT_TRUE(state().equal(after));
      for (auto& slot : shards_of(model->fc1->weight)) EXPECT_LE(slot.size(0), (130 + n - 1) / n + 1) << str(mesh);
    }
  });
}

TEST(BornSharded, AfterTheScopeTensorsArePlainAgain) {
  for_each_world({2}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    {
      BornSharded scope(mesh);
      EXPECT_TRUE(is_dtensor(torch::zeros({4})));
      EXPECT_EQ(str(placements_of(torch::randn({1, 40}))), "[S(1)]");
      EXPECT_EQ(str(placements_of(torch::arange(4))), "[R]");
    }
    EXPECT_FALSE(is_dtensor(torch::zeros({4})));
  });
}

TEST(BornSharded, APlanOfStylesGivesTheModelThatParallelizeModuleGives) {
  for_each_world({1, 2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    ParallelPlan plan = {{"table", RowwiseParallel()}, {"fc1", ColwiseParallel()}, {"fc2", RowwiseParallel()}};
    torch::manual_seed(3);
    Net made;
    parallelize_module(*made, mesh, plan);
    torch::manual_seed(3);
    BornSharded scope(mesh, plan);
    Net born;
    scope.finish(born);
    auto x = at::arange(24).view({2, 12});
    auto of_made = made->forward(x), of_born = born->forward(x);
    of_made.sum().backward(), of_born.sum().backward();
    EXPECT_TRUE(of_born.equal(of_made));
    for (auto& item : made->named_parameters()) {
      auto& mine = born->named_parameters()[item.key()];
      EXPECT_EQ(is_dtensor(mine), is_dtensor(item.value())) << item.key();
      if (!is_dtensor(mine)) continue;
      EXPECT_EQ(str(layout_of(mine)), str(layout_of(item.value()))) << item.key();
      EXPECT_TRUE(full_tensor(mine.grad()).equal(full_tensor(item.value().grad()))) << item.key();
    }
  });
}

TEST(BornSharded, APlanOfNamesLaysOutEachParameter) {
  for_each_world({1, 2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    torch::manual_seed(3);
    Net plain;
    torch::manual_seed(3);
    BornSharded scope(mesh, [](const std::string& name, at::IntArrayRef shape) {
      return Placements{name == "fc2.weight" && shape.size() == 2 ? Placement(Shard(1)) : Placement(Replicate())};
    });
    Net model;
    scope.finish(model);
    EXPECT_EQ(str(placements_of(model->fc2->weight)), "[S(1)]");
    EXPECT_EQ(str(placements_of(model->fc1->weight)), "[R]");
    EXPECT_EQ(str(placements_of(model->steps)), "[R]");
    expect_equal_values(*model, *plain);
    EXPECT_EQ(error_text<c10::Error>([&] { scope.finish(model); }),
              "[BornSharded] the scope has ended: finish was called before.");
  });
}

TEST(BornSharded, FullyShardTakesItOver) {
  for_each_world({1, 2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto make = [] {
      return torch::nn::Sequential(torch::nn::Linear(36, 130), torch::nn::BatchNorm1d(130), torch::nn::Linear(130, 3));
    };
    auto x = at::linspace(-1, 1, 36 * 5).view({5, 36});
    auto train = [&](torch::nn::Sequential& model) {
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      for (int i = 0; i < 3; ++i) {
        optimizer.zero_grad();
        model->forward(x).pow(2).sum().backward();
        optimizer.step();
      }
    };
    torch::manual_seed(3);
    auto made = make();
    fully_shard(*made, mesh);
    train(made);
    torch::manual_seed(3);
    BornSharded scope(mesh);
    auto born = make();
    scope.finish(born);
    fully_shard(*born, mesh);
    train(born);
    for (auto& item : made->named_parameters()) {
      auto& mine = born->named_parameters()[item.key()];
      EXPECT_EQ(str(layout_of(mine)), str(layout_of(item.value())));
      EXPECT_TRUE(full_tensor(mine.detach()).equal(full_tensor(item.value().detach()))) << item.key();
    }
  });
}

}  // namespace
}  // namespace intarsia::nn_born_sharded_test
