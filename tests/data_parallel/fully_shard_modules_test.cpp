// fully_shard on modules of torch::nn as they are: values and gradients are those of the plain module.

#include "intarsia/data_parallel/fully_shard/fully_shard.h"

#include "tests/data_parallel/models.h"
#include "tests/support/peak_memory.h"

namespace intarsia::data_parallel_fully_shard_modules_test {
namespace {

namespace nn = torch::nn;

// A row: how to make the module, the shape of a batch of rows, and how to call it.
struct Row {
  std::string name;
  std::function<std::shared_ptr<nn::Module>()> make;
  std::vector<int64_t> shape;
  std::function<at::Tensor(nn::Module&, const at::Tensor&)> call;
};

template <class Impl, class Options>
Row row(std::string name, Options options, std::vector<int64_t> shape) {
  auto make = [options]() -> std::shared_ptr<nn::Module> {
    torch::manual_seed(9);
    auto module = std::make_shared<Impl>(options);
    module->to(at::kDouble);
    return module;
  };
  auto call = [](nn::Module& module, const at::Tensor& x) { return dynamic_cast<Impl&>(module).forward(x); };
  return {std::move(name), make, std::move(shape), call};
}

template <class Impl, class Options>
Row recurrent(std::string name, Options options) {
  auto result = row<nn::LinearImpl>(std::move(name), nn::LinearOptions(1, 1), {24, 3, 5});
  result.make = [options] {
    torch::manual_seed(9);
    auto module = std::make_shared<Impl>(options);
    module->to(at::kDouble);
    return module;
  };
  result.call = [](nn::Module& module, const at::Tensor& x) {
    return std::get<0>(dynamic_cast<Impl&>(module).forward(x));
  };
  return result;
}

std::vector<Row> all_rows() {
  std::vector<Row> rows = {
      row<nn::LinearImpl>("Linear", nn::LinearOptions(5, 3), {24, 5}),
      row<nn::LinearImpl>("Linear on sequences", nn::LinearOptions(5, 3), {24, 2, 5}),
      row<nn::Conv1dImpl>("Conv1d", nn::Conv1dOptions(5, 3, 2), {24, 5, 4}),
      row<nn::Conv2dImpl>("Conv2d", nn::Conv2dOptions(4, 6, 3).padding(1).groups(2), {24, 4, 5, 5}),
      row<nn::ConvTranspose2dImpl>("ConvTranspose2d", nn::ConvTranspose2dOptions(3, 2, 3).stride(2), {24, 3, 4, 4}),
      row<nn::LayerNormImpl>("LayerNorm", nn::LayerNormOptions({5}), {24, 5}),
      row<nn::GroupNormImpl>("GroupNorm", nn::GroupNormOptions(2, 4), {24, 4, 3}),
      row<nn::PReLUImpl>("PReLU", nn::PReLUOptions().num_parameters(3), {24, 3, 2}),
      recurrent<nn::LSTMImpl>("LSTM", nn::LSTMOptions(5, 4).num_layers(2).batch_first(true)),
      recurrent<nn::GRUImpl>("GRU", nn::GRUOptions(5, 4).batch_first(true).bidirectional(true)),
      row<nn::TransformerEncoderLayerImpl>("TransformerEncoderLayer",
                                           nn::TransformerEncoderLayerOptions(6, 2).dim_feedforward(7).dropout(0),
                                           {24, 4, 6}),
  };
  // Attention takes the sequence first: the batch is the second dim.
  rows.back().call = [](nn::Module& module, const at::Tensor& x) {
    return dynamic_cast<nn::TransformerEncoderLayerImpl&>(module).forward(x.transpose(0, 1)).transpose(0, 1);
  };
  return rows;
}

void compare_module_of(const Row& row) {
  auto mesh = all_ranks();
  auto plain = row.make(), model = row.make();
  fully_shard(*model, mesh);
  for (int64_t step = 0; step < 2; ++step) {
    auto x = inputs(step, row.shape);
    auto own_x = mine(x, mesh).requires_grad_();
    auto expected = row.call(*plain, x), actual = row.call(*model, own_x);
    sharded_by(*model).reshard();  // what backward needs is gathered again
    auto whole_out = full_tensor(from_local(actual.detach().contiguous(), mesh, {Shard(0)}));
    EXPECT_TRUE(torch::allclose(whole_out, expected, 1e-11, 1e-11)) << row.name;
    expected.sin().mean().backward();
    actual.sin().mean().backward();
    EXPECT_TRUE(own_x.grad().defined()) << row.name;
    for (auto& item : plain->named_parameters()) {
      auto grad = model->named_parameters()[item.key()].grad();
      ASSERT_TRUE(is_dtensor(grad)) << row.name << " " << item.key();
      EXPECT_TRUE(torch::allclose(full_tensor(grad), item.value().grad(), 1e-10, 1e-10))
          << row.name << " " << item.key();
    }
    torch::NoGradGuard no_grad;  // and without gradients
    auto out = row.call(*model, mine(x, mesh));
    EXPECT_TRUE(torch::allclose(full_tensor(from_local(out.contiguous(), mesh, {Shard(0)})), expected, 1e-11, 1e-11))
        << row.name;
  }
}

TEST(FullyShardModules, ServesModulesAsTheyAre) {
  for (auto& row : all_rows()) {
    SCOPED_TRACE(row.name);
    in_every_world([&] { compare_module_of(row); });
  }
}

TEST(FullyShardModules, ServesEmbeddings) {
  in_every_world([] {
    auto mesh = all_ranks();
    torch::manual_seed(9);
    nn::Embedding plain(7, 3), model(7, 3);
    plain->to(at::kDouble), model->to(at::kDouble);
    model->weight.detach().copy_(plain->weight);
    fully_shard(*model, mesh);
    auto tokens = at::arange(48).remainder(7).view({24, 2});
    plain->forward(tokens).sin().mean().backward();
    model->forward(mine(tokens, mesh)).sin().mean().backward();
    EXPECT_TRUE(torch::allclose(full_tensor(model->weight.grad()), plain->weight.grad(), 1e-12, 1e-12));
  });
}

// In training, batch norms use the statistics of the rank's own rows; each rank keeps its own running ones.
TEST(FullyShardModules, TrainsBatchNorms) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto n = mesh.size();
    auto model = cnn(), plain = cnn();
    for (auto& child : model->children()) {
      if (!child->parameters().empty()) fully_shard(*child, mesh);
    }
    torch::optim::SGD own(model->parameters(), 0.1), goal(plain->parameters(), 0.1);
    for (int64_t step = 0; step < 20; ++step) {
      own.zero_grad(), goal.zero_grad();
      auto batch = inputs(step, {24, 2, 6, 6});
      for (auto& part : batch.chunk(n)) (plain->forward(part).square().mean() / static_cast<double>(n)).backward();
      model->forward(mine(batch, mesh)).square().mean().backward();
      own.step(), goal.step();
    }
    for (auto& item : plain->named_parameters()) {
      auto value = full_tensor(model->named_parameters()[item.key()].detach());
      EXPECT_TRUE(torch::allclose(value, item.value(), 1e-11, 1e-11)) << item.key();
    }
  });
}

TEST(FullyShardModules, FreesEveryWholeAfterAStep) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = small_llama(false);
    std::vector<Sharded> groups;
    for (auto& layer : *model->layers) groups.push_back(fully_shard(*layer, mesh));
    groups.push_back(fully_shard(*model, mesh));
    auto tokens = inputs(0, {24, 7}).mul(1e4).to(at::kLong).remainder(17);
    auto loss = model->forward(mine(tokens, mesh)).square().mean();
    EXPECT_TRUE(groups[2].is_whole());
    EXPECT_FALSE(groups[0].is_whole() || groups[1].is_whole());
    loss.backward();
    for (auto& group : groups) EXPECT_FALSE(group.is_whole());
  });
}

// Above what is there at rest, a step takes the gradients (shards) and a few layers: in whole, packed, and as
// gradients.
TEST(FullyShardModules, HoldsFewLayersAtATime) {
  if (!process_world()) GTEST_SKIP() << "simulated ranks share one process";
  in_every_world([] {
    auto mesh = all_ranks();
    constexpr int64_t kLayers = 24, kWidth = 64, kLayerBytes = (kWidth * kWidth + kWidth) * 8;
    nn::Sequential model;
    for (int64_t layer = 0; layer < kLayers; ++layer) model->push_back(nn::Linear(kWidth, kWidth));
    model->to(at::kDouble);
    FullyShardOptions options;
    options.reshard_after_forward = true;
    for (auto& layer : model->children()) fully_shard(*layer, mesh, options);
    auto x = inputs(0, {1, kWidth});
    auto step = [&] { model->forward(x).sum().backward(); };
    step();
    model->zero_grad();
    EXPECT_LT(peak_of(step), kLayers * kLayerBytes / mesh.size() + 11 * kLayerBytes);
  });
}

}  // namespace
}  // namespace intarsia::data_parallel_fully_shard_modules_test
