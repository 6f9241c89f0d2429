// What users meet first, as one rank of a real job: modules, printing, the trace.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/intarsia.h"

namespace intarsia::processes_front_test {
namespace {

TEST(DistributeModuleInProcesses, RanksWithOtherWeightsAgreeWithTheFirst) {
  auto mesh = init_device_mesh(at::kCPU, {world_size()}, {"tp"});
  torch::manual_seed(0);
  torch::nn::Linear expected(3, 5);
  torch::manual_seed(rank());
  torch::nn::Linear model(3, 5);
  distribute_module(*model, mesh,
                    [](auto&, auto& module, auto& mesh) { distribute_parameter(module, "weight", mesh, {Shard(0)}); });
  EXPECT_EQ(shards_of(model->weight).size(), 1);
  EXPECT_TRUE(torch::equal(full_tensor(model->weight), expected->weight));
  EXPECT_TRUE(torch::equal(full_tensor(model->bias), expected->bias));
  torch::manual_seed(0);
}

TEST(PrintingInProcesses, ShowsTheShardOfThisRank) {
  auto mesh = init_device_mesh(at::kCPU, {world_size()}, {"tp"});
  auto text = c10::str(distribute_tensor(torch::arange(world_size()), mesh, {Shard(0)}));
  auto me = std::to_string(rank());
  EXPECT_EQ(text.substr(text.find('\n') + 1), "rank " + me + " [1]: [" + me + "]");
}

TEST(PrintingInProcesses, OnAMeshWithoutThisRankThereAreNoValues) {
  auto text = str(ones({2}, DeviceMesh(at::kCPU, {1}, {0}), {Shard(0)}));
  EXPECT_EQ(text.substr(text.find('\n') + 1),
            rank() == 0 ? "rank 0 [2]: [1.0000, 1.0000]" : "no rank of the mesh is hosted here");
}

TEST(CommDebugModeInProcesses, CountsTheBytesThatASimulationCounts) {
  auto trace = [&] {
    auto mesh = init_device_mesh(at::kCPU, {current_world().size()}, {"tp"});
    auto x = distribute_tensor(torch::ones({8, 6}), mesh, {Shard(0)});
    auto pending = from_local(torch::ones({8, 6}), mesh, {Partial()});
    CommDebugMode comms;
    redistribute(x, {Shard(1)});
    redistribute(pending, {Shard(0)});
    torch::relu(pending);
    return comms.text();
  };
  auto real = trace();
  auto world = simulate(world_size());
  // The busiest rank counts: with 2 and 4 ranks 8 rows and 6 columns are cut such that rank 0 is as busy as any.
  if (process_world()->hosted()[0] == 0) {
    EXPECT_EQ(real, trace());
  }
}

}  // namespace
}  // namespace intarsia::processes_front_test
