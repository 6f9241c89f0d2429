// Every function that takes a module takes it as itself, by its holder and by a shared pointer, const or not.

#include <functional>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/intarsia.h"
#include "tests/support/error_text.h"

namespace intarsia::nn_module_arguments_test {
namespace {

using torch::nn::Linear;
using torch::nn::LinearImpl;

DeviceMesh line() { return init_device_mesh(at::kCPU, {2}, {"dp"}); }

// `call` with each kind of owner of a fresh module.
template <class Call>
void with_each(Call call) {
  {
    Linear layer(4, 2);
    call(layer);
  }
  {
    const Linear layer(4, 2);
    call(layer);
  }
  {
    Linear layer(4, 2);
    call(*layer);
  }
  {
    auto pointer = std::make_shared<LinearImpl>(4, 2);
    call(pointer);
  }
  {
    const std::shared_ptr<const std::shared_ptr<LinearImpl>> nested =
        std::make_shared<const std::shared_ptr<LinearImpl>>(std::make_shared<LinearImpl>(4, 2));
    call(*nested);
  }
}

Placements replicated(const std::string&, const at::Tensor&) { return {Replicate()}; }

TEST(ModuleArguments, OfDataParallelism) {
  auto world = simulate(2);
  auto mesh = line();
  with_each([&](auto& layer) {
    replicate(layer, mesh);
    EXPECT_EQ(replica_of(layer).mesh(), mesh);
    NoSync no_sync(layer);
  });
  with_each([&](auto& layer) { replicate(layer); });
  with_each([&](auto& layer) { replicate(layer, mesh, ReplicateOptions()); });
}

TEST(ModuleArguments, OfTensorParallelism) {
  auto world = simulate(2);
  auto mesh = line();
  with_each([&](auto& layer) {
    distribute_parameter(layer, "weight", mesh, {Shard(0)});
    distribute_module(layer, mesh);
    redistribute(layer, mesh, replicated);
    EXPECT_EQ(full_state_dict(layer).size(), 2);
    load_full_state_dict(layer, full_state_dict(layer));
  });
  with_each([&](auto& layer) {
    distribute_module(layer, mesh,
                      [](auto&, auto& module, auto& mesh) { distribute_parameter(module, "bias", mesh, {Shard(0)}); });
  });
  with_each([&](auto& layer) { parallelize_module(layer, mesh, ColwiseParallel()); });
  with_each([&](auto& layer) {
    MeshScope scope(mesh);
    parallelize_module(layer, ColwiseParallel());
  });
  with_each([&](auto& layer) {
    BornSharded scope(mesh);
    scope.finish(layer);
  });
}

TEST(ModuleArguments, OfWhatShowsModules) {
  auto world = simulate(2);
  auto mesh = line();
  with_each([&](auto& layer) {
    EXPECT_NE(describe(layer).find("weight"), std::string::npos);
    ModuleTrace trace(layer);
    EXPECT_EQ(explain(layer, mesh, ColwiseParallel(), {{{8, 4}}}).parameters.size(), 2);
    auto make = [&](auto& stage) { replicate(layer, stage); };
    EXPECT_EQ(explain(layer, mesh, make, {{{8, 4}}}).parameters.size(), 2);
    auto step = [&](auto& inputs) {
      auto parameters = ModuleRef(layer)->parameters();
      return torch::linear(inputs[0], parameters[0], parameters[1]).sum();
    };
    EXPECT_EQ(explain(layer, mesh, make, {{{8, 4}}}, step).parameters.size(), 2);
    checkpoint::Item item(ModuleRef(layer).operator*());
  });
  Linear holder(4, 2);
  checkpoint::Items items = {{"itself", *holder}, {"holder", holder}, {"pointer", holder.ptr()}};
  EXPECT_EQ(items.size(), 3);
  EXPECT_TRUE(torch::equal(recompute(holder, at::ones({1, 4})), recompute(holder.ptr(), at::ones({1, 4}))));
}

struct Call {
  const char* name;
  std::function<void()> run;
};

// Every function that takes a module. Those that look for a wrapped one come after the one that wraps.
template <class Owner>
std::vector<Call> calls_with(const Owner& owner) {
  auto mesh = line();
  TrainingStep step = [=](auto& inputs) {
    auto parameters = ModuleRef(owner)->parameters();
    return torch::linear(inputs[0], parameters[0], parameters[1]).sum();
  };
  return {
      {"distribute_parameter", [=] { distribute_parameter(owner, "weight", mesh, {Shard(0)}); }},
      {"distribute_module", [=] { distribute_module(owner, mesh); }},
      {"redistribute", [=] { redistribute(owner, mesh, replicated); }},
      {"parallelize_module", [=] { parallelize_module(owner, mesh, ColwiseParallel()); }},
      {"full_state_dict", [=] { full_state_dict(owner); }},
      {"load_full_state_dict", [=] { load_full_state_dict(owner, full_state_dict(owner)); }},
      {"BornSharded::finish", [=] { BornSharded(mesh).finish(owner); }},
      {"convert_sync_batchnorm", [=] { convert_sync_batchnorm(owner, mesh); }},
      {"replicate", [=] { replicate(owner, mesh); }},
      {"replica_of", [=] { replicate(owner, mesh), replica_of(owner); }},
      {"NoSync", [=] { NoSync no_sync(owner); }},
      {"fully_shard", [=] { fully_shard(owner, mesh); }},
      {"sharded_by", [=] { fully_shard(owner, mesh), sharded_by(owner); }},
      {"groups_in", [=] { EXPECT_EQ(groups_in(owner).size(), 0); }},
      {"describe", [=] { describe(owner); }},
      {"ModuleTrace", [=] { ModuleTrace trace(owner); }},
      {"explain", [=] { explain(owner, mesh, ParallelPlan(ColwiseParallel()), {{{8, 4}}}, step); }},
      {"checkpoint::Item", [=] { checkpoint::Items items = {{"model", owner}}; }},
  };
}

TEST(ModuleArguments, AnAnyModuleIsAHolder) {
  auto world = simulate(2);
  for (size_t i = 0; i < calls_with(torch::nn::AnyModule()).size(); ++i) {
    auto call = calls_with(torch::nn::AnyModule(Linear(4, 2)))[i];
    EXPECT_EQ(error_text<c10::Error>(call.run), "no error") << call.name;
  }
}

template <class Owner>
void expect_refused(const Owner& owner, const std::string& text) {
  for (auto& call : calls_with(owner)) EXPECT_EQ(error_text<c10::ValueError>(call.run), text) << call.name;
}

TEST(ModuleArguments, EmptyHoldersAndNullPointersAreErrors) {
  auto world = simulate(2);
  expect_refused(std::shared_ptr<LinearImpl>(), "[ModuleRef] the pointer to a module is null. Make the module first.");
  expect_refused(std::shared_ptr<torch::nn::Module>(),
                 "[ModuleRef] the pointer to a module is null. Make the module first.");
  expect_refused(Linear(nullptr), "[ModuleRef] the holder of a module is empty. Make the module first.");
  expect_refused(torch::nn::AnyModule(), "[ModuleRef] the holder of a module is empty. Make the module first.");
  EXPECT_EQ(error_text<c10::ValueError>([] { recompute(Linear(nullptr), at::ones({1, 4})); }),
            "[ModuleRef] the holder of a module is empty. Make the module first.");
  Linear layer(4, 2);
  EXPECT_EQ(error_text<c10::ValueError>([&] { fully_shard({&*layer, nullptr}, line()); }),
            "[fully_shard] module 1 of the list is null. Give addresses of modules.");
  ReplicateOptions options;
  options.ignored_modules = {nullptr};
  EXPECT_EQ(error_text<c10::ValueError>([&] { replicate(layer, line(), options); }),
            "[replicate] an ignored module is null. Give addresses of modules.");
}

}  // namespace
}  // namespace intarsia::nn_module_arguments_test
