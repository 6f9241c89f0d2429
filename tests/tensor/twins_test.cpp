// Replicas on simulated ranks share memory. Nothing of that may be seen: a write reaches the ranks that write, each
// once.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/comm/axis.h"
#include "intarsia/simulation/twins/twins.h"
#include "intarsia/tensor/policy.h"
#include "tests/support/lay_out.h"
#include "tests/support/peak_memory.h"
#include "tests/support/world.h"
#include "tests/support/worlds.h"

namespace intarsia::tensor_twins_test {
namespace {

DeviceMesh line() { return init_device_mesh(at::kCPU, {current_world().size()}); }
at::Tensor ramp() { return at::arange(24, at::kDouble).reshape({4, 6}) + 1; }
at::Tensor like(const at::Tensor& x, double number) {
  return is_dtensor(x) ? distribute_tensor(at::full({4, 6}, number, at::kDouble), mesh_of(x), placements_of(x))
                       : at::full({4, 6}, number, at::kDouble);
}

// Every shard of a tensor that is replicated on all axes.
void expect_everywhere(const at::Tensor& x, const at::Tensor& expected) {
  for (auto& shard : shards_of(x)) EXPECT_EQ(difference(shard, expected), "");
}

using Make = std::function<at::Tensor()>;
const std::vector<std::pair<const char*, Make>> kReplicas = {
    {"distribute_tensor", [] { return distribute_tensor(ramp(), line(), {Replicate()}); }},
    {"distribute_tensor of one's own", [] { return distribute_tensor(ramp(), line(), {Replicate()}, std::nullopt); }},
    {"S(0) -> R", [] { return redistribute(distribute_tensor(ramp(), line(), {Shard(0)}), {Replicate()}); }},
    {"S(1) -> R", [] { return redistribute(distribute_tensor(ramp(), line(), {Shard(1)}), {Replicate()}); }},
    {"S(1) -> R, under way",
     [] { return redistribute(distribute_tensor(ramp(), line(), {Shard(1)}), {Replicate()}, true); }},
    {"P(sum) -> R", [] { return redistribute(lay_out(ramp(), line(), {Partial()}), {Replicate()}); }},
    {"P(avg) -> R",
     [] { return redistribute(distribute_tensor(ramp(), line(), {Partial(ReduceOp::avg)}), {Replicate()}); }},
    {"from_local of one for all", [] { return from_local(ramp(), line(), {Replicate()}); }},
    {"the result of an op", [] { return distribute_tensor(ramp(), line(), {Replicate()}) * 1; }},
    {"a factory",
     [] {
       return zeros({4, 6}, line(), {Replicate()}, at::kDouble) + distribute_tensor(ramp(), line(), {Replicate()});
     }},
};

using Write = std::function<void(at::Tensor&)>;
const std::vector<std::pair<const char*, Write>> kWrites = {
    {"add_", [](auto& x) { x.add_(1); }},
    {"add_ of a tensor", [](auto& x) { x.add_(like(x, 3)); }},
    {"add_ of itself", [](auto& x) { x.add_(x); }},
    {"copy_", [](auto& x) { x.copy_(like(x, 5)); }},
    {"out=", [](auto& x) { at::mul_out(x, x, x); }},
    {"foreach", [](auto& x) { at::_foreach_add_({x, x}, 2); }},
    {"foreach of lists", [](auto& x) { at::_foreach_addcmul_({x}, {like(x, 2)}, {like(x, 3)}, 0.5); }},
    {"a row", [](auto& x) { x[1].mul_(10); }},
    {"a column", [](auto& x) { x.select(1, 2).fill_(-1); }},
    {"a transposed view", [](auto& x) { x.t().sub_(2); }},
    {"a flat view", [](auto& x) { x.view({24}).slice(0, 3, 20, 2).zero_(); }},
    {"between views", [](auto& x) { x[0].add_(x[3]); }},
    {"index_put_",
     [](auto& x) {
       x.index_fill_(0, is_dtensor(x) ? distribute_tensor(at::arange(2), mesh_of(x), {Replicate()}) : at::arange(2), 8);
     }},
    {"data()", [](auto& x) { x.data().neg_(); }},
    {"detach()", [](auto& x) { x.detach().neg_(); }},
    {"set_data", [](auto& x) { x.set_data(like(x, 4)), x.add_(1); }},
    {"every local tensor", [](auto& x) { is_dtensor(x) ? to_local(x).mul_(2) : x.mul_(2); }},
    {"every shard",
     [](auto& x) {
       if (!is_dtensor(x)) x.mul_(2);
       if (is_dtensor(x))
         for (auto& shard : shards_of(x)) shard.mul_(2);
     }},
    {"every shard of a view",
     [](auto& x) {
       if (!is_dtensor(x)) x.t().mul_(2);
       if (is_dtensor(x))
         for (auto& shard : shards_of(x.t())) shard.mul_(2);
     }},
};

TEST(TwinTensors, AreWrittenToOnceOnEveryRank) {
  in_every_world([] {
    for (auto& [how, make] : kReplicas) {
      for (auto& [name, write] : kWrites) {
        SCOPED_TRACE(std::string(name) + " on " + how);
        auto x = make(), other = x * 1, view = x.narrow(0, 1, 2), plain = ramp(), plain_view = plain.narrow(0, 1, 2);
        bool keeps_view = std::string(name) != "set_data";
        for (int i = 0; i < 2; ++i) write(x), write(plain);
        expect_everywhere(x, plain);
        expect_everywhere(other, ramp());
        if (keeps_view) expect_everywhere(view, plain_view);
      }
    }
  });
}

TEST(TwinTensors, AWriteOnOneRankStaysThere) {
  in_every_world([] {
    for (auto& [how, make] : kReplicas) {
      SCOPED_TRACE(how);
      auto x = make(), y = x + 1;
      auto row = x[2];
      for (size_t slot = 0; slot < shards_of(x).size(); ++slot) {
        if (mesh_of(x).slots()[slot].rank == 0) shards_of(x)[slot].mul_(0);
      }
      x.add_(1);
      for (size_t slot = 0; slot < shards_of(x).size(); ++slot) {
        bool wrote = mesh_of(x).slots()[slot].rank == 0;
        EXPECT_EQ(difference(shards_of(x)[slot], (wrote ? ramp() * 0 : ramp()) + 1), "");
        EXPECT_EQ(difference(shards_of(row)[slot], ((wrote ? ramp() * 0 : ramp()) + 1)[2]), "");
      }
      expect_everywhere(y, ramp() + 1);
    }
  });
}

TEST(TwinTensors, ALocalTensorThatWasGivenIsWrittenTo) {
  in_every_world([] {
    auto x = distribute_tensor(ramp(), line(), {Replicate()});
    auto local = to_local(x);
    auto y = from_local(local, line(), {Replicate()});
    y.mul_(3);
    expect_everywhere(x, ramp() * 3);
    local.add_(1);
    expect_everywhere(y, ramp() * 3 + 1);
    expect_everywhere(x, ramp() * 3 + 1);
  });
}

TEST(TwinTensors, WhatFullTensorGivesIsTheCallersOwn) {
  in_every_world([] {
    for (auto& placement : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
      auto x = distribute_tensor(ramp(), line(), {placement});
      auto whole = full_tensor(x), again = full_tensor(x);
      whole.mul_(0);
      EXPECT_EQ(difference(again, ramp()), "");
      EXPECT_EQ(difference(full_tensor(x), ramp()), "");
    }
  });
}

TEST(TwinTensors, OptimizersStepOnceOnEveryRank) {
  in_every_world([] {
    auto plain = ramp().requires_grad_(), cut = distribute_tensor(ramp(), line(), {Replicate()}).requires_grad_();
    torch::optim::AdamW ours({cut}, 0.1), theirs({plain}, 0.1);
    torch::optim::SGD sgd({cut}, torch::optim::SGDOptions(0.1).momentum(0.9)),
        sgd_plain({plain}, torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 3; ++step) {
      for (auto* optimizer : std::initializer_list<torch::optim::Optimizer*>{&ours, &theirs, &sgd, &sgd_plain}) {
        optimizer->zero_grad();
        auto& leaf = optimizer->param_groups()[0].params()[0];
        leaf.square().sum().backward();
        optimizer->step();
      }
      expect_everywhere(cut.detach(), plain.detach());
    }
  });
}

TEST(TwinTensors, GradientsAddUpOnceOnEveryRank) {
  in_every_world([] {
    auto plain = ramp().requires_grad_(), cut = distribute_tensor(ramp(), line(), {Replicate()}).requires_grad_();
    for (int i = 0; i < 3; ++i) (cut * cut).sum().backward(), (plain * plain).sum().backward();
    expect_everywhere(cut.grad(), plain.grad());
    cut.grad().mul_(2);
    expect_everywhere(cut.grad(), plain.grad() * 2);
  });
}

TEST(TwinTensors, TheGradientOfAFullTensorIsEveryRanksOwn) {
  in_every_world([] {
    for (auto& placement : {Placement(Replicate()), Placement(Shard(0))}) {
      auto x = distribute_tensor(ramp(), line(), {placement}).requires_grad_();
      auto given = ramp();
      full_tensor(x).backward(given);
      x.grad().mul_(2);
      for (auto& shard : shards_of(x.grad())) shard.add_(1);
      EXPECT_EQ(difference(full_tensor(x.grad()), ramp() * 2 + 1), "");
      // One rank's gradient may be the tensor given, as after a view of a plain one.
      EXPECT_TRUE(process_world() || current_world().size() == 1 || difference(given, ramp()).empty());
    }
  });
}

TEST(TwinTensors, TwoAxesShareWhatBothReplicate) {
  for_each_world({4, 8}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {2, n / 2});
    for (auto& [a, b] : std::vector<std::pair<Placement, Placement>>{
             {Shard(0), Shard(1)}, {Replicate(), Shard(1)}, {Partial(), Shard(0)}, {Shard(1), Partial()}}) {
      auto x = lay_out(ramp(), mesh, {a, b});
      auto whole = redistribute(x, {Replicate(), Replicate()}), rows = redistribute(x, {Shard(0), Replicate()});
      for (int i = 0; i < 2; ++i) whole.add_(1), rows.add_(1);
      expect_everywhere(whole, ramp() + 2);
      EXPECT_EQ(difference(full_tensor(rows), ramp() + 2), "");
      EXPECT_EQ(difference(full_tensor(x), ramp()), "");
    }
  });
}

TEST(TwinTensors, RulesThatAskForARanksPlaceGetIt) {
  for_each_world({4, 8}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {2, n / 2});
    auto square = at::ones({8, 8}, at::kDouble);  // every shard is the same
    for (auto& placements :
         std::vector<Placements>{{Shard(0), Replicate()}, {Shard(0), Shard(1)}, {Replicate(), Shard(1)}}) {
      auto x = from_local(at::ones(local_shape(*Layout::get(mesh, placements), {8, 8}, {0, 0}), at::kDouble), mesh,
                          placements);
      EXPECT_EQ(difference(full_tensor(at::tril(x)), at::tril(square)), "") << str(placements);
      EXPECT_EQ(difference(full_tensor(at::cumsum(x, 0)), at::cumsum(square, 0)), "") << str(placements);
      EXPECT_EQ(
          difference(full_tensor(at::embedding(x, distribute_tensor(at::arange(8), mesh, {Replicate(), Replicate()}))),
                     square),
          "");
    }
  });
}

TEST(TwinTensors, TakeTheMemoryOfOneValue) {
  if (process_world()) GTEST_SKIP() << "simulates its ranks itself";
  auto world = simulate(64);
  auto whole = at::rand({64, 128});
  auto rows = distribute_tensor(whole, line(), {Shard(0)});
  at::Tensor x, y;
  auto bytes = static_cast<int64_t>(whole.nbytes());
  EXPECT_LE(peak_of([&] { x = redistribute(rows, {Replicate()}); }), 3 * bytes);
  EXPECT_LE(peak_of([&] { y = torch::relu(x * 2 + 1).add_(1).t() * x.t(); }), 5 * bytes);
  EXPECT_LE(peak_of([&] { distribute_tensor(whole, line(), {Replicate()}), full_tensor(rows); }), 3 * bytes);
  for (auto& shard : shards_of(y)) EXPECT_TRUE(are_twins(shard, shards_of(y)[0]));
}

TEST(TwinTensors, CollectivesOfTheAxisLeaveWhatTheyAreGivenAlone) {
  in_every_world([] {
    auto& axis = Axis::whole(line());
    Shards terms, given;
    for (size_t slot = 0; slot < axis.slot_count(); ++slot) {
      terms.push_back(at::full({3}, static_cast<double>(axis.position(slot)), at::kDouble));
      given.push_back(at::full({3}, static_cast<double>(axis.position(slot)), at::kDouble));
    }
    auto sums = axis.all_reduce(terms, ReduceOp::sum);
    axis.broadcast(given, 0);
    auto total = static_cast<double>(axis.size() * (axis.size() - 1) / 2);
    for (size_t slot = 0; slot < sums.size(); ++slot) {
      sums[slot].add_(axis.position(slot)), given[slot].add_(axis.position(slot));
      EXPECT_EQ(sums[slot][0].item<double>(), total + static_cast<double>(axis.position(slot)));
      EXPECT_EQ(given[slot][0].item<double>(), static_cast<double>(axis.position(slot)));
    }
  });
}

}  // namespace
}  // namespace intarsia::tensor_twins_test
