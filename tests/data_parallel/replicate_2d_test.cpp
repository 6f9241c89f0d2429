// replicate on modules whose parameters are distributed: cut over another axis, or lying on a mesh that has the axis.

#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "tests/data_parallel/models.h"
#include "tests/support/error_text.h"

namespace intarsia::data_parallel_replicate_2d_test {
namespace {

DeviceMesh grid() {
  auto n = current_world().size();
  return init_device_mesh(at::kCPU, {n % 2 ? n : 2, n % 2 ? 1 : n / 2}, {"dp", "tp"});
}

at::Tensor square_mean(torch::nn::Sequential model, const at::Tensor& x) { return model->forward(x).square().mean(); }

ParallelPlan tensor_parallel() { return {{"0", ColwiseParallel()}, {"2", RowwiseParallel()}}; }

TEST(Replicate2d, AveragesShardsOfTensorParallelModules) {
  in_every_world([] {
    auto mesh = grid();
    auto model = mlp(), plain = mlp();
    parallelize_module(*model, mesh["tp"], tensor_parallel());
    replicate(*model, mesh["dp"]);
    torch::optim::AdamW own(model->parameters(), 0.01), goal(plain->parameters(), 0.01);
    for (int64_t step = 0; step < 20; ++step) {
      own.zero_grad(), goal.zero_grad();
      auto batch = inputs(step, {24, 5});
      auto part = to_local(distribute_tensor(batch, mesh, {Shard(0), Replicate()}, std::nullopt)).detach();
      square_mean(plain, batch).backward();
      square_mean(model, part).backward();
      own.step(), goal.step();
    }
    expect_same_tensors(*model, *plain, 1e-11);
    auto weight = model->parameters()[0];
    EXPECT_EQ(str(placements_of(weight)), "[S(0)]");
    EXPECT_EQ(str(placements_of(weight.grad())), "[S(0)]");
  });
}

TEST(Replicate2d, FollowsAModuleThatBecomesTensorParallelLater) {
  for (bool views : {false, true}) {
    in_every_world([views] {
      auto mesh = grid();
      auto model = mlp(), plain = mlp();
      ReplicateOptions options;
      options.gradient_as_bucket_view = views;
      replicate(*model, mesh["dp"], options);
      for (int64_t step = 0; step < 4; ++step) {
        if (step == 1) parallelize_module(*model, mesh["tp"], tensor_parallel());
        auto batch = inputs(step, {24, 5});
        auto part = to_local(distribute_tensor(batch, mesh, {Shard(0), Replicate()}, std::nullopt)).detach();
        square_mean(plain, batch).backward();  // gradients add up
        square_mean(model, part).backward();
        for (size_t i = 0; i < 6; ++i) {
          EXPECT_TRUE(
              torch::allclose(whole(model->parameters()[i].grad()), plain->parameters()[i].grad(), 1e-12, 1e-12))
              << i;
        }
      }
    });
  }
}

TEST(Replicate2d, RefusesAModuleThatIsCutAlongItsAxisLater) {
  auto world = simulate(2);
  auto mesh = all_ranks();
  auto model = mlp();
  replicate(*model, mesh);
  auto tp = init_device_mesh(at::kCPU, {2}, {"tp"});  // the same ranks under another name
  for (auto& line : {mesh, tp}) {
    EXPECT_EQ(
        error_text<c10::ValueError>([&] { parallelize_module(*model, line, tensor_parallel()); }),
        "[replicate] \"0.weight\" is [S(0)]: it is cut along the axis that it is to be replicated on. Leave it out "
        "with "
        "ignored_parameters, parallelize it over another axis of the mesh, such as mesh[\"tp\"], or use fully_shard.");
    for (auto& p : model->parameters()) EXPECT_FALSE(is_dtensor(p));
  }
  square_mean(model, mine(inputs(0, {24, 5}), mesh)).backward();  // usable as before
  distribute_module(*model, mesh);
  EXPECT_EQ(str(placements_of(model->parameters()[0])), "[R]");
}

TEST(Replicate2d, RefusesAModuleThatIsCutAlongItsAxisBefore) {
  auto world = simulate(2);
  auto mesh = all_ranks();
  auto model = mlp();
  parallelize_module(*model, mesh, tensor_parallel());
  EXPECT_NE(error_text<c10::ValueError>([&] { replicate(*model, mesh); }).find("it is cut along the axis"),
            std::string::npos);
  EXPECT_EQ(
      error_text<c10::ValueError>([&] { fully_shard(*model, mesh); }),
      "[fully_shard] \"0.weight\" is parallelized over DeviceMesh(cpu, dp=2), along which it is to be sharded. Use "
      "two axes of a mesh: parallelize_module over mesh[\"tp\"], and fully_shard over mesh[\"dp\"].");
}

TEST(Replicate2d, SumsWhatIsPendingAlongTheAxisInOneMessage) {
  in_every_world([] {
    auto mesh = grid();
    auto model = mlp(), plain = mlp();
    distribute_module(*model, mesh);
    replicate(*model, mesh["dp"]);
    auto batch = inputs(0, {24, 5});
    auto loss = square_mean(model, distribute_tensor(batch, mesh, {Shard(0), Replicate()}));
    CommDebugMode comms;
    loss.backward();
    EXPECT_EQ(comms.get_total_counts(), mesh.size(0) > 1 ? 1 : 0) << comms.text();
    square_mean(plain, batch).backward();
    for (size_t i = 0; i < 6; ++i) {
      auto grad = model->parameters()[i].grad();
      EXPECT_EQ(str(placements_of(grad)), "[R, R]");
      EXPECT_TRUE(torch::allclose(full_tensor(grad), plain->parameters()[i].grad(), 1e-12, 1e-12)) << i;
    }
  });
}

TEST(Replicate2d, PlainParametersAreAveragedLineByLine) {
  auto world = simulate(4);
  auto mesh = grid();
  auto model = mlp();
  replicate(*model, mesh["dp"]);
  auto part = to_local(distribute_tensor(inputs(0, {4, 5}), mesh, {Shard(0), Shard(0)})).detach();
  square_mean(model, part).backward();
  auto grads = values_of(model->parameters()[0].grad());  // ranks 0 and 2 are one line, 1 and 3 another
  EXPECT_TRUE(torch::equal(grads[0], grads[2]) && torch::equal(grads[1], grads[3]));
  EXPECT_FALSE(torch::allclose(grads[0], grads[1]));
}

TEST(Replicate2d, AParameterThatIsCutAlongTheAxisIsRefused) {
  auto world = simulate(2);
  auto model = mlp();
  distribute_parameter(*model, "0.weight", all_ranks(), {Shard(0)});
  EXPECT_EQ(
      error_text<c10::ValueError>([&] { replicate(*model, all_ranks()); }),
      "[replicate] \"0.weight\" is [S(0)]: it is cut along the axis that it is to be replicated on. Leave it out with "
      "ignored_parameters, parallelize it over another axis of the mesh, such as mesh[\"tp\"], or use fully_shard.");
}

}  // namespace
}  // namespace intarsia::data_parallel_replicate_2d_test
