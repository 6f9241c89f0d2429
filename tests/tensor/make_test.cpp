// Making distributed tensors and reading them back.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/error_text.h"
#include "tests/support/lay_out.h"
#include "tests/support/worlds.h"

namespace intarsia::tensor_make_test {
namespace {

DeviceMesh line() { return init_device_mesh(at::kCPU, {current_world().size()}, {"tp"}); }
at::Tensor ramp(std::vector<int64_t> shape) {
  return at::arange(c10::multiply_integers(shape), at::kDouble).reshape(shape);
}

// A value that differs from rank to rank: the rank's number added to `base`.
at::Tensor by_rank(const at::Tensor& base) {
  Shards values;
  for (auto rank : current_world().hosted()) values.push_back(base + rank);
  return values.size() == 1 ? values[0] : per_rank(values);
}

TEST(DistributeTensor, LooksLikeTheWholeAndHoldsItsShards) {
  in_every_world([] {
    auto x = distribute_tensor(ramp({5, 3}), line(), {Shard(-2)});
    EXPECT_EQ(x.sizes(), (at::IntArrayRef{5, 3}));
    EXPECT_EQ(x.scalar_type(), at::kDouble);
    EXPECT_EQ(str(placements_of(x)), "[S(0)]");
    auto expected = deal_out(ramp({5, 3}), {Shard(0)}, {current_world().size()});
    for (size_t i = 0; i < shards_of(x).size(); ++i) {
      EXPECT_TRUE(at::equal(shards_of(x)[i], expected[mesh_of(x).slots()[i].rank]));
    }
    EXPECT_TRUE(at::equal(full_tensor(x), ramp({5, 3})));
  });
}

TEST(DistributeTensor, TheSourceRankDecidesWhereRanksDiffer) {
  in_every_world([] {
    for (auto& placements : {Placements{Shard(0)}, Placements{Replicate()}, Placements{StridedShard(1, 2)}}) {
      auto source = current_world().size() - 1;
      auto x = distribute_tensor(by_rank(ramp({5, 3})), line(), placements, source);
      EXPECT_TRUE(at::equal(full_tensor(x), ramp({5, 3}) + source)) << str(placements);
    }
  });
}

// What one rank sees, not what all see: the first rank's tensor, and another on the last.
at::Tensor unlike_on_the_last(const at::Tensor& first, const at::Tensor& last) {
  Shards values;
  for (auto rank : current_world().hosted()) values.push_back(rank + 1 == current_world().size() ? last : first);
  return values.size() == 1 ? values[0] : per_rank(values);
}

TEST(DistributeTensor, RefusesOtherShapesAndDtypesOnEveryRank) {
  in_every_world([] {
    if (current_world().size() == 1) return;
    for (auto& placements : {Placements{Shard(0)}, Placements{Replicate()}, Placements{Partial()}}) {
      auto unlike = unlike_on_the_last(at::ones({6, 4}), at::ones({4, 6}));
      auto text = error_text<c10::ValueError>([&] { distribute_tensor(unlike, line(), placements); });
      auto last = current_world().size() - 1;
      auto expected = "[distribute_tensor] the ranks of " + line().text() + " give different tensors: ";
      for (int64_t r = 0; r < last; ++r) expected += c10::str("rank ", r, " Float[6, 4], ");
      EXPECT_EQ(text,
                expected + c10::str("rank ", last,
                                    " Float[4, 6]. Their values may differ, but not their shape, dtype and whether "
                                    "they require grad."));
    }
  });
}

TEST(DistributeTensor, RefusesOtherDtypesOnEveryRank) {
  if (!process_world()) GTEST_SKIP() << "a per-rank tensor has one dtype";
  auto unlike = unlike_on_the_last(at::ones({4}), at::ones({4}, at::kDouble));
  EXPECT_THROW(distribute_tensor(unlike, line(), {Shard(0)}), c10::ValueError);
  EXPECT_TRUE(at::equal(full_tensor(distribute_tensor(at::ones({4}), line(), {Shard(0)})), at::ones({4})));
}

TEST(Factories, RefuseNegativeSizesAsThePlainOnesDo) {
  in_every_world([] {
    auto mesh = line();
    auto expect_alike = [](auto plain, auto ours) {
      EXPECT_EQ(error_text<c10::Error>(ours), error_text<c10::Error>(plain));
    };
    expect_alike([] { at::zeros({-2, 3}); }, [&] { intarsia::zeros({-2, 3}, mesh, {Shard(0)}); });
    expect_alike([] { at::ones({-2, 3}); }, [&] { intarsia::ones({-2, 3}, mesh, {Replicate()}); });
    expect_alike([] { at::empty({-2, 3}); }, [&] { intarsia::empty({-2, 3}, mesh, {Shard(1)}); });
    expect_alike([] { at::full({-2, 3}, 1); }, [&] { intarsia::full({-2, 3}, 1, mesh, {Shard(0)}); });
    expect_alike([] { at::ones({2}).new_zeros({-2, 3}); },
                 [&] { intarsia::ones({2}, mesh, {Shard(0)}).new_zeros({-2, 3}); });
  });
}

TEST(DistributeTensor, WithoutASourceEveryRankCutsItsOwn) {
  in_every_world([] {
    auto x = distribute_tensor(by_rank(at::zeros({8})), line(), {Shard(0)}, std::nullopt);
    for (size_t i = 0; i < shards_of(x).size(); ++i) {
      auto& shard = shards_of(x)[i];
      EXPECT_TRUE(at::equal(shard, at::full(shard.sizes(), mesh_of(x).slots()[i].rank, at::kFloat)));
    }
  });
}

TEST(DistributeTensor, IsALeafThatRequiresGradIfTheTensorDoes) {
  in_every_world([] {
    auto x = distribute_tensor(ramp({4}).requires_grad_(), line(), {Shard(0)});
    EXPECT_TRUE(x.requires_grad() && x.is_leaf());
    EXPECT_FALSE(distribute_tensor(ramp({4}), line(), {Shard(0)}).requires_grad());
  });
}

TEST(DistributeTensor, RefusesWhatItCannotDo) {
  auto world = simulate(2);
  auto mesh = line();
  auto x = distribute_tensor(ramp({4}), mesh, {Shard(0)});
  EXPECT_EQ(
      error_text<c10::ValueError>([&] { distribute_tensor(ramp({4}), mesh, {}); }),
      "[distribute_tensor] 0 placements given, but DeviceMesh(cpu, tp=2) has 1 axis. Give one placement per axis.");
  EXPECT_EQ(error_text<c10::ValueError>([&] { distribute_tensor(ramp({4}), mesh, {Shard(0)}, 2); }),
            "[distribute_tensor] src_data_rank 2 is not on axis \"tp\" of DeviceMesh(cpu, tp=2). It must be below 2.");
  EXPECT_EQ(error_text<c10::ValueError>([&] { distribute_tensor(x, mesh, {Replicate()}); }),
            "[distribute_tensor] the tensor is already distributed as [S(0)], not as [R]. Use redistribute.");
  EXPECT_EQ(
      error_text<c10::TypeError>([&] { full_tensor(ramp({4})); }),
      "[full_tensor] needs a distributed tensor, but got a plain one of shape [4]. Make one with distribute_tensor.");
}

TEST(FromLocal, TakesEqualShardsAsTheyAre) {
  in_every_world([] {
    auto x = from_local(by_rank(at::zeros({2, 3})), line(), {Shard(0)});
    EXPECT_EQ(x.size(0), 2 * current_world().size());
    EXPECT_EQ(full_tensor(x).select(1, 0).sum().item<double>(), current_world().size() * (current_world().size() - 1));
  });
}

TEST(FromLocal, RunCheckAddsUpUnevenShards) {
  in_every_world([] {
    auto mesh = line();
    auto pieces = deal_out(ramp({5, 3}), {Shard(0)}, {mesh.size()});
    Shards mine;
    for (auto& slot : mesh.slots()) mine.push_back(pieces[slot.rank]);
    FromLocalOptions options;
    options.run_check = true;
    auto x = from_local(mine.size() == 1 ? mine[0] : per_rank(mine), mesh, {Shard(0)}, options);
    EXPECT_TRUE(at::equal(full_tensor(x), ramp({5, 3})));
  });
}

TEST(FromLocal, RunCheckMakesReplicasEqual) {
  in_every_world([] {
    FromLocalOptions options;
    options.run_check = true;
    auto x = from_local(by_rank(at::zeros({3})), line(), {Replicate()}, options);
    for (auto& shard : shards_of(x)) EXPECT_TRUE(at::equal(shard, at::zeros({3})));
  });
}

TEST(FromLocal, NamesTheRankWhoseShardDoesNotFit) {
  auto world = simulate(2);
  FromLocalOptions options;
  options.shape = std::vector<int64_t>{5, 3};
  EXPECT_EQ(
      error_text<c10::ValueError>([&] { from_local(at::zeros({3, 3}), line(), {Shard(0)}, options); }),
      "[from_local] rank 1 holds a shard of shape [3, 3], but [S(0)] on DeviceMesh(cpu, tp=2) of a tensor of shape "
      "[5, 3] needs [2, 3]. Shards are cut as torch.chunk cuts; pass the global shape, or set run_check.");
  options.shape = std::vector<int64_t>{5};
  EXPECT_EQ(error_text<c10::ValueError>([&] { from_local(at::zeros({3, 3}), line(), {Shard(0)}, options); }),
            "[from_local] the shape [5] has 1 dims, but the local tensor has 2. Their numbers must be equal.");
}

TEST(FromLocal, SharesMemoryWithALocalTensorOfOneRank) {
  auto world = simulate(1);
  auto local = at::zeros({3});
  auto x = from_local(local, line(), {Shard(0)});
  x.add_(1);
  EXPECT_TRUE(at::equal(local, at::ones({3})));
}

TEST(ToLocal, SharesMemoryAndTakesPlainOps) {
  in_every_world([] {
    auto x = distribute_tensor(ramp({8}), line(), {Shard(0)});
    auto local = to_local(x);
    local.mul_(2).add_(1);
    EXPECT_TRUE(at::equal(full_tensor(x), ramp({8}) * 2 + 1));
  });
}

TEST(FullTensor, IsTheCallersOwn) {
  in_every_world([] {
    auto x = distribute_tensor(ramp({4}), line(), {Replicate()});
    full_tensor(x).add_(1);
    for (auto& shard : shards_of(x)) EXPECT_TRUE(at::equal(shard, shards_of(x)[0])) << "replicas differ";
  });
}

TEST(Factories, MakeOnlyTheShards) {
  in_every_world([] {
    for (auto& placements :
         {Placements{Shard(0)}, Placements{Replicate()}, Placements{Partial()}, Placements{Partial("max")}}) {
      EXPECT_TRUE(at::equal(full_tensor(zeros({5, 2}, line(), placements)), at::zeros({5, 2})));
      EXPECT_TRUE(at::equal(full_tensor(ones({5, 2}, line(), placements)), at::ones({5, 2})));
      EXPECT_TRUE(at::equal(full_tensor(full({5}, 7, line(), placements)), at::full({5}, 7, at::kLong)));
      EXPECT_EQ(empty({5, 2}, line(), placements, at::kHalf).scalar_type(), at::kHalf);
    }
    EXPECT_TRUE(ones({5}, line(), {Shard(0)}, at::TensorOptions().requires_grad(true)).requires_grad());
  });
}

TEST(Factories, CanMakeATensorThatNoRankCouldHold) {
  auto world = simulate(256);
  auto x = empty({int64_t{1} << 40, 4}, line(), {Shard(0)}, at::TensorOptions(at::kMeta));
  EXPECT_EQ(x.numel(), int64_t{1} << 42);
}

TEST(FromLocal, PendingReductionsOfSeveralKindsHaveNoOneValue) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(at::kCPU, {2, 2});
  auto text = error_text<c10::ValueError>([&] { from_local(at::ones({2}), mesh, {Partial("max"), Partial()}); });
  EXPECT_EQ(text,
            "[from_local] [P(max), P(sum)] has no one value: it depends on which reduction is done first. Use one "
            "kind of Partial on all axes, or sums and averages.");
  EXPECT_EQ(full_tensor(from_local(at::ones({2}), mesh, {Partial("avg"), Partial()})).sum().item<float>(), 4);
}

TEST(MseLoss, TheMeanOfHalfNumbersWhoseSumIsTooLarge) {
  auto world = simulate(2);
  auto mesh = init_device_mesh(at::kCPU, {2});
  auto x = at::full({4096}, 8.0, at::kHalf), y = at::zeros({4096}, at::kHalf);  // the sum of squares is 262144
  auto a = distribute_tensor(x, mesh, {Shard(0)}).requires_grad_();
  auto loss = at::mse_loss(a, distribute_tensor(y, mesh, {Shard(0)}));
  loss.backward();
  EXPECT_EQ(loss.scalar_type(), at::kHalf);
  EXPECT_EQ(full_tensor(loss).item<float>(), 64);
  EXPECT_EQ(full_tensor(a.grad())[0].item<float>(), 16.f / 4096);
}

}  // namespace
}  // namespace intarsia::tensor_make_test
