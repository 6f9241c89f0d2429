// fully_shard of parameters that are distributed over several axes: those of data parallelism among them, or others.

#include "intarsia/data_parallel/fully_shard/fully_shard.h"

#include "tests/data_parallel/models.h"

namespace intarsia::data_parallel_full_mesh_test {
namespace {

struct Case {
  std::vector<int64_t> shape;
  std::vector<std::string> names, data;  // all axes, and those of data parallelism
  int64_t hidden;
  const char* at_rest;  // of the first weight
};

const Case kCases[] = {
    {{2, 2}, {"dp", "tp"}, {"dp"}, 8, "[SS(0, 2), S(0)] on DeviceMesh(cpu, dp=2, tp=2)"},
    {{2, 2}, {"dp", "tp"}, {"dp"}, 7, "[SS(0, 2), S(0)] on DeviceMesh(cpu, dp=2, tp=2)"},
    {{2, 4}, {"tp", "dp"}, {"dp"}, 7, "[S(0), S(0)] on DeviceMesh(cpu, tp=2, dp=4)"},
    {{4, 2}, {"dp", "tp"}, {"dp"}, 9, "[S(0), S(0)] on DeviceMesh(cpu, tp=2, dp=4; ranks [0 2 4 6 1 3 5 7])"},
    {{2, 2, 2},
     {"copies", "dp", "tp"},
     {"copies", "dp"},
     7,
     "[R, SS(0, 2), S(0)] on DeviceMesh(cpu, copies=2, dp=2, tp=2)"},
    {{2, 2, 2}, {"dp", "more", "tp"}, {"dp"}, 9, "[SS(0, 2), R, S(0)] on DeviceMesh(cpu, dp=2, more=2, tp=2)"},
};

// Each parameter on the whole mesh: its first dim is cut along "tp".
void spread(torch::nn::Module& module, const DeviceMesh& mesh) {
  for (auto& child : module.children()) {
    for (auto& item : child->named_parameters(false)) {
      Placements placements(mesh.ndim(), Replicate());
      placements[mesh.axis_of("tp")] = Shard(0);
      item.value().set_data(distribute_tensor(item.value().detach(), mesh, placements));
    }
  }
}

at::Tensor rows_of(const at::Tensor& batch, const DeviceMesh& mesh, const std::vector<std::string>& data) {
  Placements placements(mesh.ndim(), Replicate());
  for (auto& name : data) placements[mesh.axis_of(name)] = Shard(0);
  return distribute_tensor(batch, mesh, placements);
}

void compare_with_one_process(const Case& one) {
  auto mesh = init_device_mesh(at::kCPU, one.shape, one.names);
  auto model = mlp(one.hidden), plain = mlp(one.hidden);
  spread(*model, mesh);
  for (size_t i : {0, 2, 4}) fully_shard(*model[i], mesh.slice(one.data));
  EXPECT_EQ(str(layout_of(model->parameters()[0])), one.at_rest);
  torch::optim::AdamW own(model->parameters(), 0.01), goal(plain->parameters(), 0.01);
  for (int64_t step = 0; step < 10; ++step) {
    own.zero_grad(), goal.zero_grad();
    auto batch = inputs(step, {24, 5});
    plain->forward(batch).square().mean().backward();
    model->forward(rows_of(batch, mesh, one.data)).square().mean().backward();  // one loss over all ranks
    own.step(), goal.step();
  }
  expect_same_tensors(*model, *plain, 1e-12);
}

TEST(FullMesh, ParametersOnAMeshWithTheAxisTrainAsOneProcessDoes) {
  for (auto& one : kCases) {
    int64_t ranks = c10::multiply_integers(one.shape);
    SCOPED_TRACE(one.at_rest);
    if (process_world() && current_world().size() != ranks) continue;
    if (process_world()) {
      compare_with_one_process(one);
    } else {
      auto world = simulate(ranks);
      compare_with_one_process(one);
    }
  }
}

TEST(FullMesh, ParametersThatAreBornCutAlongTheAxisKeepTheirValues) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
  auto model = mlp(8), plain = mlp(8);
  for (auto& p : model->parameters()) p.set_data(distribute_tensor(p.detach(), mesh, {Shard(0), Replicate()}));
  fully_shard(*model, mesh["dp"]);
  EXPECT_EQ(str(layout_of(model->parameters()[0])), "[S(0), R] on DeviceMesh(cpu, dp=2, tp=2)");
  expect_same_tensors(*model, *plain, 0);
}

// What is distributed over two other axes lies on a mesh of all three.
TEST(FullMesh, ParametersOverTwoOtherAxesTrainAsOneProcessDoes) {
  auto world = simulate(8);
  auto mesh = init_device_mesh(at::kCPU, {2, 2, 2}, {"dp", "ep", "tp"});
  auto model = mlp(8), plain = mlp(8);
  for (auto& p : model->parameters())
    p.set_data(distribute_tensor(p.detach(), mesh.slice({"ep", "tp"}), {Replicate(), Shard(0)}));
  fully_shard(*model, mesh["dp"]);
  EXPECT_EQ(str(layout_of(model->parameters()[0])), "[SS(0, 2), R, S(0)] on DeviceMesh(cpu, dp=2, ep=2, tp=2)");
  torch::optim::SGD own(model->parameters(), 0.1), goal(plain->parameters(), 0.1);
  for (int64_t step = 0; step < 5; ++step) {
    own.zero_grad(), goal.zero_grad();
    auto batch = inputs(step, {24, 5});
    plain->forward(batch).square().mean().backward();
    auto rows = to_local(distribute_tensor(batch, mesh, {Shard(0), Replicate(), Replicate()})).detach();
    auto given = from_local(rows, mesh.slice({"ep", "tp"}), {Replicate(), Replicate()});
    to_local(redistribute(model->forward(given), {Replicate(), Replicate()})).square().mean().backward();
    own.step(), goal.step();
  }
  expect_same_tensors(*model, *plain, 1e-12);
}

TEST(FullMesh, EachPlaceAlongAnotherAxisHasAGridOfItsOwn) {
  auto world = simulate(8);
  auto mesh = init_device_mesh(at::kCPU, {2, 2, 2}, {"pp", "dp", "tp"});
  auto model = mlp(8), plain = mlp(8);
  for (auto& p : model->parameters()) p.set_data(distribute_tensor(p.detach(), mesh["tp"], {Shard(0)}));
  fully_shard(*model, mesh["dp"]);
  EXPECT_EQ(str(layout_of(model->parameters()[0])),
            "[SS(0, 2), S(0)] on DeviceMesh(cpu, dp=2, tp=2; ranks [0 1 2 3] [4 5 6 7])");
  expect_same_tensors(*model, *plain, 0);
}

TEST(FullMesh, AMeshThatMakesNoGridIsAnErrorBeforeAnythingIsSent) {
  auto world = simulate(8);
  auto mesh = init_device_mesh(at::kCPU, {2, 2, 2}, {"pp", "dp", "tp"});
  auto model = mlp(8), plain = mlp(8);
  for (auto& p : model->parameters())
    p.set_data(distribute_tensor(p.detach(), mesh.slice({"pp", "dp"}), {Shard(0), Shard(0)}));
  EXPECT_THROW(fully_shard(*model, mesh.slice({"dp", "tp"})), c10::ValueError);
  expect_same_tensors(*model, *plain, 0);
}

}  // namespace
}  // namespace intarsia::data_parallel_full_mesh_test
