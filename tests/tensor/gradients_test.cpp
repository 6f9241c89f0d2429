// Gradients of the doors between plain and distributed tensors.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/error_text.h"
#include "tests/support/lay_out.h"
#include "tests/support/worlds.h"

namespace intarsia::tensor_gradients_test {
namespace {

DeviceMesh line() { return init_device_mesh(at::kCPU, {current_world().size()}); }
at::Tensor ramp(std::vector<int64_t> shape) {
  return at::arange(c10::multiply_integers(shape), at::kDouble).reshape(shape);
}

TEST(Gradients, OfRedistributeIsTheGradientAtTheSource) {
  in_every_world([] {
    for (auto from : {"[R]", "[S(0)]", "[SS(0, 2)]", "[S(1)]", "[P(sum)]", "[P(avg)]"}) {
      for (auto to : {"[R]", "[S(0)]", "[SS(1, 2)]", "[S(1)]", "[P(sum)]", "[P(avg)]"}) {
        if (std::string(from)[1] == 'P' && std::string(to)[1] == 'P' && std::string(from) != to) continue;
        auto x = lay_out(ramp({5, 3}), line(), parse_placements(from)).requires_grad_();
        auto y = redistribute(x, parse_placements(to));
        (full_tensor(y) * ramp({5, 3})).sum().backward();
        EXPECT_EQ(difference(full_tensor(x.grad()), ramp({5, 3}), 1e-12), "") << from << " -> " << to;
      }
    }
  });
}

TEST(Gradients, OfFullTensorLieAsTheCallerSays) {
  in_every_world([] {
    auto x = distribute_tensor(ramp({5, 3}), line(), {Shard(0)}).requires_grad_();
    auto rank_share = full_tensor(x, Placements{Partial()});  // every rank's loss counts
    rank_share.sum().backward();
    auto n = static_cast<double>(current_world().size());
    EXPECT_EQ(difference(full_tensor(x.grad()), at::full({5, 3}, n, at::kDouble), 1e-12), "");
  });
}

TEST(Gradients, OfToLocalStayOnTheirRank) {
  in_every_world([] {
    auto x = distribute_tensor(ramp({24, 3}), line(), {Shard(0)}).requires_grad_();
    auto local = to_local(x);
    (local * local).sum().backward();
    EXPECT_EQ(difference(full_tensor(x.grad()), 2 * ramp({24, 3}), 1e-12), "");
  });
}

TEST(Gradients, OfFromLocalAreTheShardsOfTheGradient) {
  in_every_world([] {
    auto mesh = line();
    auto n = mesh.size();
    for (auto& [placements, factor] : std::vector<std::pair<Placements, double>>{
             {{Shard(0)}, 1.0}, {{Partial("sum")}, 1.0}, {{Partial("avg")}, 1.0 / n}, {{Replicate()}, 1.0}}) {
      auto local = at::ones({2, 3}, at::kDouble).requires_grad_();
      auto x = from_local(local, mesh, placements);
      full_tensor(x * 3).sum().backward();
      for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {  // every rank's own
        auto grad = value_at(local.grad(), slot);
        EXPECT_EQ(difference(grad, at::full({2, 3}, 3 * factor, at::kDouble), 1e-12), "") << str(placements);
      }
    }
  });
}

TEST(Gradients, ThroughAPendingMaxHaveNoMeaningForTheShares) {
  in_every_world([] {
    auto local = at::ones({2}, at::kDouble).requires_grad_();
    auto x = from_local(local, line(), {Partial("max")});
    EXPECT_EQ(error_text<c10::NotImplementedError>([&] { full_tensor(x).sum().backward(); }),
              "[from_local] has no gradient for [P(max)]. Use Partial(sum) or Partial(avg), or detach.");
  });
}

// See Note [Gradients of nothing].
TEST(Gradients, ThatAFormulaMakesOfNothingAreDistributedZeros) {
  in_every_world([] {
    auto sign = lay_out(ramp({5, 3}) - 7, line(), {Shard(0)}).requires_grad_();
    auto x = lay_out(ramp({5, 3}) + 1, line(), {Shard(1)}).requires_grad_();
    auto y = at::copysign(x, sign) * 2 + at::nextafter(x, sign * 3);
    y.sum().backward();
    ASSERT_TRUE(is_dtensor(sign.grad()));
    EXPECT_EQ(difference(full_tensor(sign.grad()), at::zeros({5, 3}, at::kDouble)), "");
    auto plain_sign = (ramp({5, 3}) - 7).requires_grad_(), plain = (ramp({5, 3}) + 1).requires_grad_();
    (at::copysign(plain, plain_sign) * 2 + at::nextafter(plain, plain_sign * 3)).sum().backward();
    EXPECT_EQ(difference(full_tensor(x.grad()), plain.grad()), "");
  });
}

TEST(Gradients, OfAnEmptyEntryOfCatFlowOn) {
  in_every_world([] {
    auto nothing = lay_out(at::zeros({0}, at::kDouble), line(), {Shard(0)}).requires_grad_();
    auto x = lay_out(ramp({5, 3}), line(), {Shard(0)}).requires_grad_();
    at::cat({nothing * 2, x * 3}, 0).sum().backward();
    ASSERT_TRUE(is_dtensor(nothing.grad()));
    EXPECT_EQ(nothing.grad().sizes(), at::IntArrayRef({0}));
    EXPECT_EQ(difference(full_tensor(x.grad()), at::full({5, 3}, 3, at::kDouble)), "");
  });
}

// The formula of ormqr's gradient writes into parts of what it has computed, which may be pending: on one rank, over
// nobody.
TEST(Gradients, OfFormulasThatWriteIntoPendingValuesAreRightOnOneRankToo) {
  in_every_world([] {
    auto values = at::sin(ramp({5, 5}) * 0.7), scales = at::cos(ramp({5}));
    for (auto placement : {Placement(Shard(0)), Placement(Shard(1)), Placement(Replicate()), Placement(Partial())}) {
      auto matrix = values.clone().requires_grad_();
      auto cut = lay_out(values, line(), {placement}).requires_grad_(),
           cut_scales = lay_out(scales, line(), {Shard(0)});
      at::ormqr(matrix, scales, matrix).sum().backward();
      at::ormqr(cut, cut_scales, cut).sum().backward();
      EXPECT_EQ(difference(full_tensor(cut.grad()), matrix.grad(), 1e-9), "") << str(placement);
    }
  });
}

}  // namespace
}  // namespace intarsia::tensor_gradients_test
