// Gradients of the doors between plain and distributed tensors.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/error_text.h"
#include "tests/support/lay_out.h"
#include "tests/support/worlds.h"

namespace intarsia {
namespace {

DeviceMesh line() { return init_device_mesh(at::kCPU, {current_world().size()}); }
at::Tensor ramp(std::vector<int64_t> shape) { return at::arange(c10::multiply_integers(shape), at::kDouble).reshape(shape); }

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
    auto x = distribute_tensor(ramp({5, 3}), line(), {Shard(0)}).requires_grad_();
    auto local = to_local(x);
    (local * local).sum().backward();
    EXPECT_EQ(difference(full_tensor(x.grad()), 2 * ramp({5, 3}), 1e-12), "");
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
      auto grad = local.grad();
      // One plain tensor given to many simulated ranks is an input of each of them.
      auto hosts = static_cast<double>(mesh.slots().size());
      EXPECT_EQ(difference(grad, at::full({2, 3}, 3 * factor * hosts, at::kDouble), 1e-12), "") << str(placements);
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

}  // namespace
}  // namespace intarsia
