#include <torch/torch.h>

#include "intarsia/comm/trace.h"
#include "tests/ops/along_the_cut.h"

namespace intarsia::ops_lists_test {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Parameters {
  Tensors whole, cut;
};

Parameters parameters(int64_t n) {
  auto mesh = init_device_mesh(at::kCPU, {n}, {"tp"});
  Parameters made;
  for (auto& sizes : std::vector<std::vector<int64_t>>{{7, 5}, {3}, {2, 2, 2}}) {
    made.whole.push_back(scrambled(sizes));
    made.cut.push_back(lay_out(scrambled(sizes), mesh, {made.cut.size() == 1 ? Placement(Replicate()) : Shard(0)}));
  }
  return made;
}

void expect_same(const Tensors& cut, const Tensors& whole) {
  ASSERT_EQ(cut.size(), whole.size());
  for (size_t i = 0; i < cut.size(); ++i) EXPECT_EQ(difference(full_tensor(cut[i]), whole[i], 1e-12), "") << i;
}

TEST(Lists, ForeachOpsRunOnTheShards) {
  for_each_world({2, 3}, [](int64_t n) {
    auto p = parameters(n), q = parameters(n);
    CommDebugMode comms;
    expect_same(at::_foreach_add(p.cut, q.cut, 2), at::_foreach_add(p.whole, q.whole, 2));
    expect_same(at::_foreach_sqrt(at::_foreach_abs(p.cut)), at::_foreach_sqrt(at::_foreach_abs(p.whole)));
    at::_foreach_mul_(p.cut, 3);
    at::_foreach_mul_(p.whole, 3);
    at::_foreach_addcdiv_(p.cut, q.cut, q.cut, 0.5);
    at::_foreach_addcdiv_(p.whole, q.whole, q.whole, 0.5);
    comms.exit();
    expect_same(p.cut, p.whole);
    EXPECT_EQ(comms.fallbacks().size(), 0);
  });
}

TEST(Lists, ForeachOpsOfOtherLayoutsAreDoneOneByOne) {
  for_each_world({2, 3}, [](int64_t n) {
    auto p = parameters(n), q = parameters(n);
    q.cut[0] = redistribute(q.cut[0], {Replicate()});
    expect_same(at::_foreach_add(p.cut, q.cut), at::_foreach_add(p.whole, q.whole));
  });
}

TEST(Lists, FusedStepsAreThoseOfThePlainOptimizer) {
  for_each_world({2, 3}, [](int64_t n) {
    auto p = parameters(n), g = parameters(n), m = parameters(n), v = parameters(n);
    for (auto* list : {&v.cut, &v.whole}) at::_foreach_abs_(*list);
    Tensors steps(3, at::tensor(2.f)), none;
    CommDebugMode comms;
    at::_fused_adamw_(p.cut, g.cut, m.cut, v.cut, none, steps, 0.1, 0.9, 0.99, 0.01, 1e-8, false, false);
    at::_fused_adamw_(p.whole, g.whole, m.whole, v.whole, none, steps, 0.1, 0.9, 0.99, 0.01, 1e-8, false, false);
    at::_fused_sgd_(p.cut, g.cut, m.cut, 0.01, 0.9, 0.1, 0., false, false, false);
    at::_fused_sgd_(p.whole, g.whole, m.whole, 0.01, 0.9, 0.1, 0., false, false, false);
    EXPECT_EQ(comms.text(), "");
    EXPECT_EQ(comms.fallbacks().size(), 0);
    comms.exit();
    expect_same(p.cut, p.whole);
    expect_same(m.cut, m.whole);
  });
}

TEST(Lists, AFusedStepTakesAPendingGradient) {
  auto world = simulate(2);
  auto p = parameters(2), g = parameters(2);
  g.cut[0] = lay_out(g.whole[0], mesh_of(p.cut[0]), {Partial()});
  Tensors none;
  at::_fused_sgd_(p.cut, g.cut, none, 0., 0., 0.1, 0., false, false, true);
  at::_fused_sgd_(p.whole, g.whole, none, 0., 0., 0.1, 0., false, false, true);
  expect_same(p.cut, p.whole);
}

TEST(Lists, OneInfiniteShardIsFoundByAllRanks) {
  auto world = simulate(3);
  auto p = parameters(3);
  auto mesh = mesh_of(p.cut[0]);
  auto found = distribute_tensor(at::zeros({1}), mesh, {Replicate()});
  auto scale = distribute_tensor(at::full({1}, 0.5), mesh, {Replicate()});
  Tensors grads;
  for (auto& t : p.cut) grads.push_back(t.to(at::kFloat));
  at::_amp_foreach_non_finite_check_and_unscale_(grads, found, scale);
  EXPECT_EQ(full_tensor(found).item<float>(), 0);
  EXPECT_EQ(difference(full_tensor(grads[0]), p.whole[0].to(at::kFloat) * 0.5), "");
  grads[0].select(0, 6).fill_(INFINITY);
  at::_amp_foreach_non_finite_check_and_unscale_(grads, found, scale);
  for (auto& shard : shards_of(found)) EXPECT_EQ(shard.item<float>(), 1);
}

}  // namespace
}  // namespace intarsia::ops_lists_test
