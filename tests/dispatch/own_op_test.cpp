// Ops that are not ATen's, as docs/adding_an_op.md has them.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/simulation/simulation.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia::dispatch_own_op_test {
namespace {

at::Tensor square_plus_one(const at::Tensor& x) { return x * x + 1; }

TORCH_LIBRARY(intarsia_own_op_test, library) {
  library.def("with_rule(Tensor x) -> Tensor", torch::dispatch(c10::DispatchKey::CPU, square_plus_one));
  library.def("without(Tensor x) -> Tensor", torch::dispatch(c10::DispatchKey::CPU, square_plus_one));
  library.def("composite(Tensor x) -> Tensor", square_plus_one);
}

at::Tensor call(const char* name, const at::Tensor& x) {
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<at::Tensor(const at::Tensor&)>();
  return op.call(x);
}

TEST(AnOpOfAnotherLibrary, WorksOnShardsOnceItHasARule) {
  rule_table().add("intarsia_own_op_test::with_rule", pointwise());
  auto world = simulate(3);
  auto x = distribute_tensor(torch::arange(7.), init_device_mesh(at::kCPU, {3}), {Shard(0)});
  CommDebugMode comms;
  auto y = call("intarsia_own_op_test::with_rule", x);
  EXPECT_EQ(comms.text(), "");
  EXPECT_EQ(str(placements_of(y)), "[S(0)]");
  EXPECT_TRUE(torch::equal(full_tensor(y), square_plus_one(torch::arange(7.))));
}

TEST(AnOpOfAnotherLibrary, RunsOnWholeTensorsWithoutOne) {
  auto world = simulate(3);
  auto x = distribute_tensor(torch::arange(7.), init_device_mesh(at::kCPU, {3}), {Shard(0)});
  CommDebugMode comms;
  auto y = call("intarsia_own_op_test::without", x);
  ASSERT_EQ(comms.fallbacks().size(), 1);
  EXPECT_EQ(comms.fallbacks()[0].op, "intarsia_own_op_test::without");
  EXPECT_TRUE(torch::equal(full_tensor(y), square_plus_one(torch::arange(7.))));
}

TEST(AnOpOfAnotherLibrary, ThatIsMadeOfOtherOpsNeedsNoRuleAndHasAGradient) {
  auto world = simulate(3);
  auto mesh = init_device_mesh(at::kCPU, {3});
  auto x = distribute_tensor(torch::arange(7.).requires_grad_(), mesh, {Shard(0)});
  auto y = call("intarsia_own_op_test::composite", x);
  EXPECT_EQ(str(placements_of(y)), "[S(0)]");
  y.sum().backward();
  EXPECT_TRUE(torch::equal(full_tensor(x.grad()), torch::arange(7.) * 2));
}

TEST(AnOpOfAnotherLibrary, FansOutOverOneTensorPerRank) {
  auto world = simulate(2);
  auto x = to_local(distribute_tensor(torch::arange(3.), init_device_mesh(at::kCPU, {2}), {Shard(0)}));
  auto y = call("intarsia_own_op_test::without", x);
  EXPECT_TRUE(torch::equal(values_of(y)[1], torch::tensor({5.})));
}

}  // namespace
}  // namespace intarsia::dispatch_own_op_test
