#include "intarsia/redistribute/cost.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/intarsia.h"
#include "intarsia/redistribute/plan.h"
#include "tests/support/error_text.h"
#include "tests/support/worlds.h"

namespace intarsia::redistribute_cost_test {
namespace {

// The collectives of an op that can move either operand, each along another axis.
std::string moves(const DeviceMesh& mesh) {
  auto x = zeros({64, 64}, mesh, {Shard(0), Replicate()}), y = zeros({64, 64}, mesh, {Replicate(), Shard(0)});
  CommDebugMode comms;
  x + y;
  return comms.text();
}

TEST(LinkCost, ChoicesAvoidTheSlowAxis) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"left", "right"});
  LinkCost slow{500, 0.1};
  set_link_cost(mesh, 0, slow);
  EXPECT_NE(moves(mesh).find(" right "), std::string::npos) << moves(mesh);
  EXPECT_EQ(moves(mesh).find(" left "), std::string::npos) << moves(mesh);
  set_link_cost(mesh, 0, {});
  set_link_cost(mesh, 1, slow);
  EXPECT_EQ(moves(mesh).find(" right "), std::string::npos) << moves(mesh);
}

TEST(LinkCost, APlanCostsItsMessagesAndItsBytes) {
  auto world = simulate(2);
  auto mesh = init_device_mesh(at::kCPU, {2}, {"priced"});
  auto *cut = Layout::get(mesh, {Shard(0)}), *whole = Layout::replicated(mesh);
  EXPECT_EQ(plan(cut, whole, {8, 8}, 4).cost, 16384 + 128);
  set_link_cost(mesh, 0, {2, 0.5});
  EXPECT_EQ(plan(cut, whole, {8, 8}, 4).cost, 2000 + 256);
}

TEST(LinkCost, AllRanksMeasureTheSame) {
  in_every_world([] {
    auto mesh = init_device_mesh(at::kCPU, {world_size()}, {"measured"});
    auto cost = measure_link_costs(mesh)[0];
    EXPECT_GT(cost.gigabytes_per_second, 0);
    auto mine = at::tensor({cost.latency_us, cost.gigabytes_per_second}, at::kDouble);
    auto all = from_local(mine, mesh, {Partial(ReduceOp::max)});
    EXPECT_TRUE(at::equal(full_tensor(all), mine));
    EXPECT_EQ(cost == LinkCost(), !process_world() || mesh.size() == 1) << str(cost);
    set_link_cost(mesh, 0, {});
  });
}

TEST(LinkCost, NonsenseIsAnError) {
  auto world = simulate(2);
  auto mesh = init_device_mesh(at::kCPU, {2}, {"priced"});
  EXPECT_EQ(error_text<c10::ValueError>([&] { set_link_cost(mesh, 1, {}); }),
            "[set_link_cost] DeviceMesh(cpu, priced=2) has no axis 1. It has axes 0 to 0.");
  EXPECT_EQ(error_text<c10::ValueError>([&] { set_link_cost(mesh, 0, {1, 0}); }),
            "[set_link_cost] got 1 us + 0 GB/s. A latency is not negative, and a speed is more than zero.");
}

}  // namespace
}  // namespace intarsia::redistribute_cost_test
