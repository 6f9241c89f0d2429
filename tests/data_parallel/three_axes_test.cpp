// Copies, shards and tensor parallelism on one mesh of three axes, in every grid of the ranks.

#include "tests/data_parallel/trainees.h"

namespace intarsia::data_parallel_three_axes_test {
namespace {

// All ways to write n as a product of three numbers.
std::vector<std::vector<int64_t>> grids_of(int64_t n) {
  std::vector<std::vector<int64_t>> grids;
  for (int64_t a = 1; a <= n; ++a) {
    for (int64_t b = 1; a * b <= n; ++b) {
      if (n % (a * b) == 0) grids.push_back({a, b, n / (a * b)});
    }
  }
  return grids;
}

template <class Body>
void in_every_grid(Body body) {
  auto try_all = [&] {
    for (auto& shape : grids_of(current_world().size())) {
      auto mesh = init_device_mesh(at::kCPU, shape, {"copies", "shards", "tp"});
      SCOPED_TRACE(mesh.text());
      body(mesh);
    }
  };
  if (process_world()) return try_all();
  for (int64_t n : {4, 8}) {
    auto world = simulate(n);
    try_all();
  }
}

// The rows of a rank: those along "tp" share them.
at::Tensor rows_of(const at::Tensor& batch, const DeviceMesh& mesh) {
  return to_local(distribute_tensor(batch, mesh, {Shard(0), Shard(0), Replicate()}, std::nullopt)).detach();
}

using Wrap = std::function<void(Trainee&, const DeviceMesh&)>;

void compare_on(const DeviceMesh& mesh, Trainee own, Trainee plain, const Wrap& wrap, int64_t passes) {
  wrap(own, mesh);
  auto optimizer = optimizer_for(own), goal = optimizer_for(plain);
  auto rows = 2 * mesh.size(0) * mesh.size(1);
  for (int64_t step = 0; step < 20; ++step) {
    auto batch = [&](int64_t pass) { return plain.batch(step * passes + pass, rows); };
    auto loss =
        mean_of_ranks(parallel_step(own, optimizer, passes, [&](int64_t pass) { return rows_of(batch(pass), mesh); }));
    goal.zero_grad();
    double expected = 0;
    for (int64_t pass = 0; pass < passes; ++pass) {
      auto term = plain.loss(batch(pass));
      term.backward();
      expected += term.item<double>();
    }
    goal.step();
    ASSERT_NEAR(loss, expected, 1e-12 * std::max(1.0, std::abs(expected))) << "in step " << step;
  }
  expect_same_tensors(*own.module, *plain.module, 1e-12);
}

const ParallelPlan& mlp_plan() {
  static const ParallelPlan plan = {{"0", ColwiseParallel()}, {"2", RowwiseParallel()}};
  return plan;
}

void shard_mlp(Trainee& trainee, const DeviceMesh& mesh) {
  parallelize_module(*trainee.module, mesh["tp"], mlp_plan());
  for (auto* layer : trainee.layers) fully_shard(*layer, mesh.slice({"copies", "shards"}));
}

void replicate_mlp(Trainee& trainee, const DeviceMesh& mesh) {
  parallelize_module(*trainee.module, mesh["tp"], mlp_plan());
  replicate(*trainee.module, mesh.slice({"copies", "shards"}).flatten("dp"));
}

Trainee mlp_with(int64_t hidden) { return of_sequential(mlp(hidden), at::kDouble, {0, 5}); }

TEST(ThreeAxes, TrainAShardedMlpAsOneProcessDoes) {
  in_every_grid([](const DeviceMesh& mesh) {
    compare_on(mesh, mlp_with(8), mlp_with(8), shard_mlp, 1);
    if (mesh.size(0) <= 2) compare_on(mesh, mlp_with(7), mlp_with(7), shard_mlp, 2);  // does not divide, and adds up
  });
}

TEST(ThreeAxes, TrainAReplicatedMlpAsOneProcessDoes) {
  in_every_grid([](const DeviceMesh& mesh) {
    if (mesh.size(0) > 2) return;  // copies and shards are one axis
    compare_on(mesh, mlp_with(7), mlp_with(7), replicate_mlp, 2);
  });
}

TEST(ThreeAxes, TrainALlamaAsOneProcessDoes) {
  in_every_grid([](const DeviceMesh& mesh) {
    if (mesh.size(2) != 2 || mesh.size(0) != 2) return;  // two heads of keys; the others are tried above
    auto make = [] {
      auto trainee = untied_llama(at::kDouble);
      auto model = std::dynamic_pointer_cast<llama::ModelImpl>(trainee.module);
      trainee.loss = [model](const at::Tensor& tokens) {
        auto logits = model->forward(tokens);  // cut by words
        return (is_dtensor(logits) ? to_local(redistribute(logits, {Replicate()})) : logits).square().mean();
      };
      return trainee;
    };
    auto wrap = [](Trainee& trainee, const DeviceMesh& mesh) {
      auto& model = dynamic_cast<llama::ModelImpl&>(*trainee.module);
      parallelize_module(model, mesh["tp"], llama::plan(model.options));
      for (auto* layer : trainee.layers) fully_shard(*layer, mesh.slice({"copies", "shards"}));
      fully_shard(model, mesh.slice({"copies", "shards"}));
    };
    compare_on(mesh, make(), make(), wrap, 1);
  });
}

TEST(ThreeAxes, ShowInThePlacements) {
  auto world = simulate(8);
  auto mesh = init_device_mesh(at::kCPU, {2, 2, 2}, {"copies", "shards", "tp"});
  auto trainee = mlp_with(8);
  shard_mlp(trainee, mesh);
  auto parameters = trainee.module->parameters();
  EXPECT_EQ(str(layout_of(parameters[0])), "[R, SS(0, 2), S(0)] on DeviceMesh(cpu, copies=2, shards=2, tp=2)");
  EXPECT_EQ(str(layout_of(parameters[2])), "[R, S(0), S(1)] on DeviceMesh(cpu, copies=2, shards=2, tp=2)");
  EXPECT_EQ(str(layout_of(parameters[4])),
            "[R, S(0)] on DeviceMesh(cpu, copies=2, shards=2; ranks [0 2 4 6] [1 3 5 7])");
}

}  // namespace
}  // namespace intarsia::data_parallel_three_axes_test
