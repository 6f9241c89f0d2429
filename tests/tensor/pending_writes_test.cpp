// In-place ops on values whose reduction is pending: the reduction is done first, for all who see the tensor.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/comm/implicit_moves.h"
#include "intarsia/debug/comm_debug_mode.h"
#include "tests/support/error_text.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"
#include "tests/support/worlds.h"

namespace intarsia::tensor_pending_writes_test {
namespace {

DeviceMesh line() { return init_device_mesh(at::kCPU, {current_world().size()}); }
at::Tensor ramp() { return at::arange(1, 25, at::kDouble).reshape({4, 6}) / 8; }
at::Tensor pending(ReduceOp op = ReduceOp::sum) { return lay_out(ramp(), line(), {Partial(op)}); }

using Write = std::function<void(at::Tensor)>;
const std::vector<std::pair<const char*, Write>> kWrites = {
    {"clamp_", [](at::Tensor x) { x.clamp_(1, 2); }},
    {"add_ of a number", [](at::Tensor x) { x.add_(0.5); }},
    {"relu_", [](at::Tensor x) { x.relu_(); }},
    {"pow_", [](at::Tensor x) { x.pow_(2); }},
    {"a view", [](at::Tensor x) { x.t().select(0, 3).sigmoid_(); }},
    {"a part", [](at::Tensor x) { x.slice(1, 2, 5).exp_(); }},
    {"cumsum_", [](at::Tensor x) { x.cumsum_(1); }},
    {"masked_fill_", [](at::Tensor x) { x.masked_fill_(x > 1, 7); }},
    {"mul_ of itself", [](at::Tensor x) { x.mul_(x); }},
    {"add_ of its square", [](at::Tensor x) { x.add_(x * x); }},
};

TEST(PendingWrites, GiveTheValuesOfThePlainOp) {
  in_every_world([] {
    for (auto& [name, write] : kWrites) {
      for (auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min, ReduceOp::product}) {
        auto plain = ramp(), x = pending(op);
        write(plain), write(x);
        EXPECT_EQ(difference(full_tensor(x), plain, 1e-12), "") << name << " of a pending " << str(op);
      }
    }
  });
}

TEST(PendingWrites, AreSeenByAllWhoSeeTheTensor) {
  in_every_world([] {
    for (auto& [name, write] : kWrites) {
      auto plain = ramp(), x = pending();
      auto detached = x.detach(), turned = x.t(), row = x.select(0, 1), part = x.view({24}).slice(0, 3, 9);
      write(plain), write(x);
      EXPECT_EQ(difference(full_tensor(detached), plain, 1e-12), "") << name;
      EXPECT_EQ(difference(full_tensor(turned), plain.t(), 1e-12), "") << name;
      EXPECT_EQ(difference(full_tensor(row), plain[1], 1e-12), "") << name;
      EXPECT_EQ(difference(full_tensor(part), plain.view({24}).slice(0, 3, 9), 1e-12), "") << name;
    }
  });
}

TEST(PendingWrites, ThroughAViewReachTheBase) {
  in_every_world([] {
    auto plain = ramp(), x = pending();
    auto turned = x.t(), row = x.select(0, 2);
    turned.clamp_(0, 2), row.add_(1);
    plain.clamp_(0, 2), plain.select(0, 2).add_(1);
    EXPECT_EQ(difference(full_tensor(x), plain, 1e-12), "");
    EXPECT_EQ(str(placements_of(turned)), str(placements_of(x)));
  });
}

TEST(PendingWrites, OverTwoAxesAndBesideCutsReduceWhatIsPending) {
  auto world = simulate(6);
  auto mesh = init_device_mesh(at::kCPU, {2, 3});
  for (Placements placements :
       {Placements{Partial(), Shard(1)}, {Shard(0), Partial()}, {Partial(), Partial()}, {Partial(), Replicate()}}) {
    auto x = lay_out(ramp(), mesh, placements);
    x.relu_().sub_(1);
    EXPECT_EQ(difference(full_tensor(x), ramp() - 1, 1e-12), "") << str(placements);
    EXPECT_FALSE(layout_of(x).has_partial());
  }
}

TEST(PendingWrites, KeepGradients) {
  in_every_world([] {
    auto run = [](const at::Tensor& leaf, const at::Tensor& other) {
      auto y = at::mm(leaf, other);  // pending where both are cut along the sum
      auto saved = y.exp();
      y += 0.5;
      y.clamp_(0.1, 30);
      auto loss = (y * 2 + saved).sum();
      loss += 0.1;
      loss.backward();
      return std::pair(loss, leaf.grad());
    };
    auto [value, grad] = run(ramp().requires_grad_(), ramp().t());
    auto [loss, actual] =
        run(lay_out(ramp(), line(), {Shard(1)}).requires_grad_(), lay_out(ramp().t().contiguous(), line(), {Shard(0)}));
    EXPECT_NEAR(loss.item<double>(), value.item<double>(), 1e-9 * value.item<double>());
    EXPECT_EQ(difference(full_tensor(actual) / value.item<double>(), grad / value.item<double>(), 1e-12), "");
  });
}

TEST(PendingWrites, OfWhatAFormulaHasSavedAreTheErrorOfAutograd) {
  in_every_world([] {
    auto leaf = lay_out(ramp(), line(), {Partial()}).requires_grad_();
    auto x = leaf * 1;
    auto y = x * x;
    x.clamp_(0, 1);
    EXPECT_THROW(y.sum().backward(), c10::Error);
  });
}

// One step of a model whose batch is cut, so that its gradients are pending sums.
using Step = std::function<at::Tensor(std::vector<at::Tensor> parameters, const std::function<at::Tensor()>& loss)>;
const std::vector<std::pair<const char*, Step>> kSteps = {
    {"clip_grad_value_",
     [](auto parameters, auto& loss) {
       loss().backward();
       torch::nn::utils::clip_grad_value_(parameters, 0.01);
       return parameters[0].grad();
     }},
    {"clamp_ of a gradient",
     [](auto parameters, auto& loss) {
       loss().backward();
       return parameters[0].mutable_grad().clamp_(-0.02, 0.01);
     }},
    {"LBFGS",
     [](auto parameters, auto& loss) {
       torch::optim::LBFGS optimizer(parameters, torch::optim::LBFGSOptions(0.1).max_iter(5));
       optimizer.step([&] {
         optimizer.zero_grad();
         auto value = loss();
         value.backward();
         return value;
       });
       return parameters[0].detach();
     }},
    {"a loss that is added to",
     [](auto parameters, auto& loss) {
       auto value = loss();
       value += 0.1;
       (value * value).backward();
       return parameters[0].grad();
     }},
};

TEST(PendingWrites, OfLibTorchItselfWorkOnPendingGradients) {
  in_every_world([] {
    for (auto& [name, step] : kSteps) {
      auto run = [&](const at::Tensor& w, const at::Tensor& x) {
        return step({w}, [&] { return at::mm(x, w).sin().square().sum(); });
      };
      auto weight = ramp().t().contiguous() / 4;
      auto expected = run(weight.clone().requires_grad_(), ramp());
      auto actual = run(lay_out(weight, line(), {Replicate()}).requires_grad_(), lay_out(ramp(), line(), {Shard(0)}));
      EXPECT_EQ(difference(full_tensor(actual), expected, 1e-9), "") << name;
    }
  });
}

TEST(PendingWrites, OfALossThatMasksItselfGiveItsGradient) {
  in_every_world([] {
    auto run = [](const at::Tensor& a, const at::Tensor& b, const at::Tensor& target) {
      auto loss = at::cosine_embedding_loss(a, b, target, 0.2);
      loss.backward();
      return std::pair(loss, a.grad());
    };
    auto other = (ramp() * 3).cos(), target = at::tensor({1, -1, -1, 1});
    auto [loss, grad] = run(ramp().requires_grad_(), other, target);
    auto cut = [](const at::Tensor& x, Placement p) { return lay_out(x, line(), {p}); };
    auto [value, actual] = run(cut(ramp(), Shard(1)).requires_grad_(), cut(other, Shard(1)), cut(target, Replicate()));
    EXPECT_NEAR(value.item<double>(), loss.item<double>(), 1e-12);
    EXPECT_EQ(difference(full_tensor(actual), grad, 1e-12), "");
  });
}

TEST(PendingWrites, ShowInTheTraceAndAreJudged) {
  auto world = simulate(2);
  auto x = pending();
  {
    ImplicitMovesScope scope(ImplicitMoves::error);
    auto text = error_text<c10::Error>([&] { x.relu_(); });
    EXPECT_EQ(text,
              "[aten::relu_] Implicit redistribution occurred for a tensor: all_reduce 0 [P(sum)] -> [R]. Call "
              "redistribute on it "
              "first, or leave the scope that forbids implicit moves.");
  }
  EXPECT_EQ(str(placements_of(x)), "[P(sum)]") << "nothing has changed";
  CommDebugMode comms;
  x.relu_(), x.relu_();
  EXPECT_EQ(comms.get_total_counts(), 1);
  EXPECT_EQ(str(placements_of(x)), "[R]");
}

TEST(PendingWrites, ThatCanStayPendingDo) {
  auto world = simulate(2);
  CommDebugMode comms;
  auto x = pending();
  x.mul_(2), x.add_(pending()), x.zero_();
  EXPECT_EQ(comms.get_total_counts(), 0);
  EXPECT_EQ(str(placements_of(x)), "[P(sum)]");
}

TEST(PendingValues, ThatAnOpHasReducedAreNotReducedAgainByRedistribute) {
  for_each_world({2, 4}, [](int64_t) {
    auto x = pending();
    x.sigmoid();
    for (bool async_op : {false, true}) {
      for (Placement to : {Placement(Replicate()), Placement(Shard(1))}) {
        CommDebugMode comms;
        auto moved = redistribute(x, {to}, async_op);
        EXPECT_EQ(comms.text(), "") << str(to) << (async_op ? ", async_op" : "");
        EXPECT_TRUE(at::allclose(full_tensor(moved), ramp()));
        moved.zero_();  // it has memory of its own
        EXPECT_TRUE(at::allclose(full_tensor(x), ramp()));
      }
    }
  });
}

}  // namespace
}  // namespace intarsia::tensor_pending_writes_test
