#include "intarsia/nn/distribute_module.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/nn/parallelize_module.h"
#include "intarsia/nn/styles.h"
#include "intarsia/simulation/simulation.h"
#include "intarsia/tensor/dtensor.h"
#include "tests/support/error_text.h"

namespace intarsia::nn_distribute_module_test {
namespace {

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
    scale = register_buffer("scale", torch::tensor({2.f}));
  }
  at::Tensor forward(const at::Tensor& x) { return fc2(torch::relu(fc1(x))) * scale; }
  torch::nn::Linear fc1{3, 5}, fc2{5, 2};
  at::Tensor scale;
};
TORCH_MODULE(Mlp);

// fc1 by columns, fc2 by rows, as tensor parallelism has it.
void split_mlp(const std::string& name, torch::nn::Module& module, const DeviceMesh& mesh) {
  if (name == "fc1") distribute_parameter(module, "weight", mesh, {Shard(0)});
  if (name == "fc1") distribute_parameter(module, "bias", mesh, {Shard(0)});
  if (name == "fc2") distribute_parameter(module, "weight", mesh, {Shard(1)});
}

struct Job {
  Simulation world{4};
  DeviceMesh mesh = init_device_mesh(at::kCPU, {4}, {"tp"});
  Mlp model;
};

std::vector<at::Tensor> copies(const torch::nn::Module& module) {
  std::vector<at::Tensor> result;
  for (auto& p : module.parameters()) result.push_back(p.detach().clone());
  return result;
}

// One step of training; the loss before it.
double step(Mlp& model, torch::optim::Optimizer& optimizer, const at::Tensor& x, const at::Tensor& y) {
  optimizer.zero_grad();
  auto loss = torch::mse_loss(model(x), y);
  loss.backward();
  optimizer.step();
  return loss.item<double>();
}

TEST(DistributeModule, AfterParallelizeModuleDistributesWhatThatLeftPlain) {
  Job job;
  Mlp plain;
  auto given = copies(*job.model);
  for (size_t i = 0; i < given.size(); ++i) plain->parameters()[i].set_data(given[i]);
  parallelize_module(*job.model, job.mesh, {{"fc1", ColwiseParallel({.use_local_output = false})}});
  distribute_module(*job.model, job.mesh);
  EXPECT_EQ(str(placements_of(job.model->fc1->weight)), "[S(0)]");
  EXPECT_EQ(str(placements_of(job.model->fc2->weight)), "[R]");
  auto x = at::arange(12, at::kFloat).reshape({4, 3});
  auto out = job.model(distribute_tensor(x, job.mesh, {Replicate()})), expected = plain->forward(x);
  EXPECT_TRUE(at::allclose(full_tensor(out), expected, 1e-4, 1e-4));
  out.sum().backward(), expected.sum().backward();
  for (size_t i = 0; i < plain->parameters().size(); ++i) {
    EXPECT_TRUE(at::allclose(full_tensor(job.model->parameters()[i].grad()), plain->parameters()[i].grad(), 1e-4, 1e-4))
        << i;
  }
}

TEST(DistributeModule, OnAnotherMeshThanParallelizeModuleIsAnErrorWhereTheTwoMeet) {
  Simulation world(4);
  auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
  Mlp model;
  parallelize_module(*model, mesh["tp"], {{"fc1", ColwiseParallel()}});
  distribute_module(*model, mesh);
  auto x = distribute_tensor(at::ones({4, 3}), mesh, {Shard(0), Replicate()});
  EXPECT_EQ(error_text<c10::ValueError>([&] { model(x); }),
            "[parallel style] its input is on DeviceMesh(cpu, dp=2, tp=2), but the module was parallelized on " +
                mesh["tp"].text() + ". Distribute the input, and what computes it, on that mesh.");
}

TEST(DistributeModule, WhatThePartitionLeavesPlainIsReplicated) {
  Job job;
  distribute_module(*job.model, job.mesh, split_mlp);
  EXPECT_EQ(str(placements_of(job.model->fc1->weight)), "[S(0)]");
  EXPECT_EQ(str(placements_of(job.model->fc1->bias)), "[S(0)]");
  EXPECT_EQ(str(placements_of(job.model->fc2->weight)), "[S(1)]");
  EXPECT_EQ(str(placements_of(job.model->fc2->bias)), "[R]");
  EXPECT_EQ(str(placements_of(job.model->scale)), "[R]");
}

TEST(DistributeModule, KeepsTheValuesAndTheHandles) {
  Job job;
  auto before = copies(*job.model);
  auto* handle = job.model->fc1->weight.unsafeGetTensorImpl();
  distribute_module(*job.model, job.mesh, split_mlp);
  auto after = job.model->parameters();
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_TRUE(torch::equal(full_tensor(after[i]), before[i]));
    EXPECT_TRUE(after[i].requires_grad() && after[i].is_leaf());
  }
  EXPECT_EQ(job.model->fc1->weight.unsafeGetTensorImpl(), handle);
  EXPECT_EQ(job.model->named_parameters()["fc1.weight"].unsafeGetTensorImpl(), handle);
}

TEST(DistributeModule, AnOptimizerMadeBeforeTrainsTheDistributedModelLikeThePlainOne) {
  Job job;
  Mlp reference;
  auto values = copies(*job.model);
  for (size_t i = 0; i < values.size(); ++i) reference->parameters()[i].set_data(values[i]);
  torch::optim::AdamW ours(job.model->parameters(), 0.01), theirs(reference->parameters(), 0.01);
  distribute_module(*job.model, job.mesh, split_mlp);
  auto x = torch::randn({6, 3}), y = torch::randn({6, 2});
  auto dx = distribute_tensor(x, job.mesh, {Replicate()}), dy = distribute_tensor(y, job.mesh, {Replicate()});
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(step(job.model, ours, dx, dy), step(reference, theirs, x, y), 1e-6);
  EXPECT_TRUE(torch::allclose(full_tensor(job.model->fc1->weight), reference->fc1->weight, 1e-5, 1e-6));
  EXPECT_EQ(str(placements_of(job.model->fc1->weight)), "[S(0)]");
}

TEST(DistributeModule, WithoutAPartitionEverythingIsReplicated) {
  Job job;
  distribute_module(*job.model, job.mesh);
  for (auto& p : job.model->parameters()) EXPECT_EQ(str(placements_of(p)), "[R]");
}

TEST(DistributeModule, CallsThePartitionForTheModuleAndEverySubmoduleOnce) {
  Job job;
  torch::nn::ModuleList inner(torch::nn::Linear(2, 2), torch::nn::ReLU());
  torch::nn::ModuleList outer(inner, job.model);
  std::vector<std::string> names;
  distribute_module(*outer, job.mesh, [&](auto& name, auto&, auto&) { names.push_back(name); });
  EXPECT_EQ(names, (std::vector<std::string>{"", "0", "0.0", "0.1", "1", "1.fc1", "1.fc2"}));
}

TEST(DistributeModule, AModuleThatIsUsedTwiceIsDistributedOnce) {
  Job job;
  torch::nn::Linear twice(3, 3);
  torch::nn::Sequential both(twice, torch::nn::ReLU(), twice);
  int calls = 0;
  distribute_module(*both, job.mesh, [&](auto&, auto& module, auto& mesh) {
    if (&module == twice.get() && ++calls) distribute_parameter(module, "weight", mesh, {Shard(1)});
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(str(placements_of(twice->weight)), "[S(1)]");
  EXPECT_EQ(str(placements_of(twice->bias)), "[R]");
}

TEST(DistributeModule, AModuleOnTheStackWorksToo) {
  auto world = simulate(2);
  auto mesh = init_device_mesh(at::kCPU, {2});
  MlpImpl model;
  distribute_module(model, mesh, split_mlp);
  EXPECT_EQ(str(placements_of(model.fc2->weight)), "[S(1)]");
}

TEST(DistributeModule, AFailureLeavesTheModuleAsItWas) {
  Job job;
  auto before = copies(*job.model);
  auto storage = job.model->fc1->weight.data_ptr();
  job.model->fc1->weight.mutable_grad() = torch::ones({5, 3});
  auto fails_late = [](const std::string& name, torch::nn::Module& module, const DeviceMesh& mesh) {
    split_mlp(name, module, mesh);
    if (name == "fc2") distribute_parameter(module, "bias", mesh, {Shard(1)});
  };
  EXPECT_EQ(error_text<c10::IndexError>([&] { distribute_module(*job.model, job.mesh, fails_late); }).substr(0, 19),
            "[distribute_tensor]");
  auto after = job.model->parameters();
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_FALSE(is_dtensor(after[i]));
    EXPECT_TRUE(torch::equal(after[i], before[i]));
    EXPECT_TRUE(after[i].requires_grad() && after[i].is_leaf());
  }
  EXPECT_EQ(job.model->fc1->weight.data_ptr(), storage);
  EXPECT_FALSE(is_dtensor(job.model->fc1->weight.grad()));
  job.model(torch::ones({1, 3})).sum().backward();  // and it still trains
}

TEST(DistributeModule, WithNoSourceRankNothingIsSent) {
  Job job;
  CommDebugMode comms;
  distribute_module(*job.model, job.mesh, nullptr, std::nullopt);
  EXPECT_EQ(comms.text(), "");
}

TEST(DistributeParameter, TakesTheGradientAlong) {
  Job job;
  auto& weight = job.model->fc1->weight;
  weight.mutable_grad() = torch::ones({5, 3});
  distribute_parameter(weight, job.mesh, {Shard(0)});
  EXPECT_EQ(str(placements_of(weight.grad())), "[S(0)]");
}

TEST(DistributeParameter, ASecondTimeTheSameWayChangesNothing) {
  Job job;
  auto& weight = job.model->fc1->weight;
  distribute_parameter(weight, job.mesh, {Shard(0)});
  distribute_parameter(weight, job.mesh, {Shard(0)});
  EXPECT_EQ(error_text<c10::ValueError>([&] { distribute_parameter(weight, job.mesh, {Shard(1)}); }),
            "[distribute_tensor] the tensor is already distributed as [S(0)], not as [S(1)]. Use redistribute.");
}

TEST(DistributeParameter, AnUnknownNameListsTheKnownOnes) {
  Job job;
  EXPECT_EQ(error_text<c10::ValueError>([&] { distribute_parameter(*job.model->fc1, "wait", job.mesh, {Shard(0)}); }),
            "[distribute_parameter] torch::nn::LinearImpl has no parameter or buffer \"wait\". It has weight, bias.");
}

TEST(DistributeParameter, ComputedAndUndefinedTensorsAreErrors) {
  Job job;
  auto computed = job.model->fc1->weight * 2;
  EXPECT_EQ(error_text<c10::ValueError>([&] { distribute_parameter(computed, job.mesh, {Shard(0)}); }),
            "[distribute_parameter] the tensor of shape [5, 3] was computed from others. "
            "Distribute those, or call distribute_tensor on its detach().");
  EXPECT_EQ(error_text<c10::ValueError>([&] { distribute_parameter(at::Tensor(), job.mesh, {Shard(0)}); }),
            "[distribute_parameter] the tensor is undefined. Give it a value first.");
}

}  // namespace
}  // namespace intarsia::nn_distribute_module_test
