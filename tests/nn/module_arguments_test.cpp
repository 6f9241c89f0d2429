// Every function that takes a module takes it as itself, by its holder and by a shared pointer, const or not.

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

TEST(ModuleArguments, AnAnyModuleIsAHolder) {
  auto world = simulate(2);
  torch::nn::AnyModule any(Linear(4, 2));
  replicate(any, line());
  EXPECT_EQ(full_state_dict(any).size(), 2);
}

TEST(ModuleArguments, EmptyHoldersAndNullPointersAreErrors) {
  auto world = simulate(2);
  EXPECT_EQ(error_text<c10::ValueError>([] { replicate(std::shared_ptr<LinearImpl>(), line()); }),
            "[ModuleRef] the pointer to a module is null. Make the module first.");
  EXPECT_EQ(error_text<c10::Error>([] { replicate(Linear(nullptr), line()); }), "Accessing empty ModuleHolder");
}

}  // namespace
}  // namespace intarsia::nn_module_arguments_test
