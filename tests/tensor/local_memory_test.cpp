// Local tensors that do not lie in memory as contiguous ones do, on their way in.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/dtensor.h"
#include "tests/support/worlds.h"

namespace intarsia::tensor_local_memory_test {
namespace {

DeviceMesh line() { return init_device_mesh(at::kCPU, {current_world().size()}); }
at::Tensor ramp(std::vector<int64_t> shape) {
  return at::arange(c10::multiply_integers(shape), at::kDouble).reshape(shape);
}

// Three of the six columns of a tensor of its own on every rank.
at::Tensor columns_on(int64_t rank) { return (ramp({2, 4, 6}).square() + rank).narrow(-1, 0, 3); }
at::Tensor columns() {
  Shards locals;
  for (auto rank : current_world().hosted()) locals.push_back(columns_on(rank));
  return locals.size() == 1 ? locals[0] : per_rank(locals);
}
at::Tensor all_columns() {
  Shards all;
  for (int64_t rank = 0; rank < current_world().size(); ++rank) all.push_back(columns_on(rank));
  return at::cat(all);
}

TEST(FromLocal, OfAPartOfALargerTensorHasGapsAndSharesItsMemory) {
  in_every_world([] {
    auto local = columns();
    auto x = from_local(local, line(), {Shard(0)});
    EXPECT_FALSE(x.is_contiguous());
    x.mul_(2);
    EXPECT_TRUE(at::equal(full_tensor(x), 2 * all_columns()));
    EXPECT_TRUE(at::equal(value_at(to_local(x), 0), value_at(local, 0)));
  });
}

// Kernels of norms take for granted what their callers make sure of by looking at the whole.
TEST(FromLocal, OfAPartOfALargerTensorIsNormalizedAsThePlainOneIs) {
  in_every_world([] {
    auto x = from_local(columns(), line(), {Shard(0)}).detach().requires_grad_(),
         plain = all_columns().requires_grad_();
    auto weights = ramp({plain.size(0), 4, 3});
    auto loss = [&](const at::Tensor& t, const at::Tensor& w) { return (at::group_norm(t, 2) * w).sum(); };
    loss(x, distribute_tensor(weights, line(), {Shard(0)})).backward();
    loss(plain, weights).backward();
    EXPECT_TRUE(at::allclose(full_tensor(x.grad()), plain.grad(), 1e-8, 1e-10));
  });
}

TEST(FromLocal, WithOtherStridesThanTheLocalTensorHasIsACopyInTheirOrder) {
  in_every_world([] {
    auto n = current_world().size();
    FromLocalOptions options;
    options.shape = {2 * n, 3};
    for (auto& stride : std::vector<std::vector<int64_t>>{{1, 2 * n}, {3, 1}, {0, 1}, {0, 0}}) {
      options.stride = stride;
      for (bool transposed : {false, true}) {
        auto local = transposed ? ramp({3, 2}).t() : ramp({2, 3});
        auto x = from_local(local, line(), {Shard(0)}, options);
        EXPECT_TRUE(at::equal(full_tensor(x), value_at(local, 0).repeat({n, 1}))) << stride;
        for (auto& shard : shards_of(x)) EXPECT_TRUE(shard.is_contiguous() || !x.is_contiguous()) << stride;
      }
    }
  });
}

TEST(FromLocal, OfExpandedAndOfOverlappingTensorsHasTheirValues) {
  in_every_world([] {
    auto n = current_world().size();
    auto expanded = ramp({3}).expand({2, 3}), overlapping = ramp({6}).unfold(0, 3, 1);
    EXPECT_TRUE(at::equal(full_tensor(from_local(expanded, line(), {Shard(0)})), expanded.repeat({n, 1})));
    EXPECT_TRUE(at::equal(full_tensor(from_local(overlapping, line(), {Shard(0)})), overlapping.repeat({n, 1})));
    auto y = from_local(overlapping, line(), {Shard(0)});
    y.add_(1);
    EXPECT_TRUE(at::equal(full_tensor(y), overlapping.repeat({n, 1}) + 1));
  });
}

// The tensor of one rank lies in another order than that of the others.
at::Tensor transposed_on(int64_t rank, const at::Tensor& values) {
  Shards locals;
  for (auto hosted : current_world().hosted()) {
    locals.push_back(hosted == rank ? values.t().contiguous().t() : values.clone());
  }
  return locals.size() == 1 ? locals[0] : per_rank(locals);
}

TEST(FromLocal, RunCheckTakesTheStridesOfTheFirstRank) {
  in_every_world([] {
    auto last = current_world().size() - 1;
    FromLocalOptions options;
    options.run_check = true;
    auto x = from_local(transposed_on(last, ramp({2, 3})), line(), {Shard(0)}, options);
    EXPECT_EQ(x.is_contiguous(), last != 0);
    EXPECT_EQ(x.reshape({-1}).sum().item<double>(), 15. * (last + 1));
  });
}

TEST(DistributeTensor, TakesTheStridesOfTheRankWhoseDataCounts) {
  in_every_world([] {
    auto last = current_world().size() - 1;
    auto given = transposed_on(last, ramp({6, 4}));
    EXPECT_EQ(distribute_tensor(given, line(), {Shard(0)}).is_contiguous(), last != 0);
    auto x = distribute_tensor(given, line(), {Shard(1)}, last);
    EXPECT_FALSE(x.is_contiguous());
    EXPECT_TRUE(at::equal(full_tensor(x), ramp({6, 4})));
  });
}

}  // namespace
}  // namespace intarsia::tensor_local_memory_test
