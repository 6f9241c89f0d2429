// Writes through local memory (to_local, shards_of, the tensor given to from_local) are seen by all who look at the
// tensor.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "tests/support/error_text.h"
#include "tests/support/lay_out.h"
#include "tests/support/worlds.h"

namespace intarsia::tensor_local_writes_test {
namespace {

DeviceMesh line() { return init_device_mesh(at::kCPU, {current_world().size()}); }
at::Tensor ramp() { return at::arange(24, at::kDouble).reshape({4, 6}); }

using Write = std::function<void(const at::Tensor&)>;
const std::vector<std::pair<const char*, Write>> kWrites = {
    {"to_local", [](auto& x) { to_local(x).mul_(10); }},
    {"to_local of a view", [](auto& x) { to_local(x.t()).mul_(10); }},
    {"a view of to_local", [](auto& x) { to_local(x).unsqueeze(0).mul_(10); }},
    {"to_local, kept",
     [](auto& x) {
       auto local = to_local(x.detach());
       local.mul_(2), local.mul_(5);
     }},
    {"shards_of",
     [](auto& x) {
       for (auto& shard : shards_of(x)) shard.mul_(10);
     }},
    {"shards_of a view",
     [](auto& x) {
       for (auto& shard : shards_of(x.unsqueeze(0))) shard.mul_(10);
     }},
};
const std::vector<Placement> kPlacements = {Replicate(), Shard(0), Shard(1), StridedShard(0, 2), Partial()};

template <class Body>
void for_each_write(Body body) {
  in_every_world([&] {
    for (auto& [name, write] : kWrites) {
      for (auto& placement : kPlacements) {
        SCOPED_TRACE(std::string(name) + " of " + str(placement));
        body(write, lay_out(ramp(), line(), {placement}));
      }
    }
  });
}

TEST(LocalWrites, AreSeenByAReductionThatWasDoneBefore) {
  for_each_write([](const Write& write, const at::Tensor& x) {
    EXPECT_EQ(x.norm().item<double>(), ramp().norm().item<double>());
    write(x);
    EXPECT_EQ(x.norm().item<double>(), (ramp() * 10).norm().item<double>());
    EXPECT_EQ(difference(full_tensor(x.clamp(0, 50)), (ramp() * 10).clamp(0, 50)), "");
  });
}

TEST(LocalWrites, AreSeenByViewsThatAreCopies) {
  for_each_write([](const Write& write, const at::Tensor& x) {
    auto row = x.select(0, 2), part = x.slice(1, 1, 6, 2), flat = x.view({24}).slice(0, 5, 9);
    write(x);
    EXPECT_EQ(difference(full_tensor(row), ramp()[2] * 10), "");
    EXPECT_EQ(difference(full_tensor(part), ramp().slice(1, 1, 6, 2) * 10), "");
    row.add_(0), flat.add_(0);
    EXPECT_EQ(difference(full_tensor(x), ramp() * 10), "") << "and are not overwritten by what those remember";
  });
}

TEST(LocalWrites, ToACopyReachWhatItViews) {
  for_each_write([](const Write& write, const at::Tensor& x) {
    auto expected = ramp();
    write(x.slice(0, 1, 4, 2));
    expected.slice(0, 1, 4, 2).mul_(10);
    EXPECT_EQ(difference(full_tensor(x), expected), "") << "through a view that is gone";
    auto column = x.slice(1, 2, 4), other = x.slice(1, 0, 2);
    write(column), write(other);
    expected.slice(1, 0, 4).mul_(10);
    EXPECT_EQ(difference(full_tensor(other), expected.slice(1, 0, 2)), "");
    EXPECT_EQ(difference(full_tensor(x), expected), "") << "through two that stay";
  });
}

TEST(LocalWrites, ToACopyOfACopyReachAllThatTheyView) {
  for_each_write([](const Write& write, const at::Tensor& x) {
    auto expected = ramp();
    auto rows = x.slice(0, 1, 4, 2), line = rows.select(0, 1), end = line.slice(0, 4, 6);
    write(end);
    expected[3].slice(0, 4, 6).mul_(10);
    EXPECT_EQ(difference(full_tensor(x), expected), "");
    EXPECT_EQ(difference(full_tensor(rows), expected.slice(0, 1, 4, 2)), "");
    write(x.slice(0, 1, 4, 2).select(0, 0).slice(0, 1, 3));
    expected[1].slice(0, 1, 3).mul_(10);
    EXPECT_EQ(difference(full_tensor(line), expected[3]), "");
    EXPECT_EQ(difference(full_tensor(x), expected), "") << "through views that are gone";
    auto kept = to_local(rows);
    line.add_(1);
    kept.mul_(2);
    expected[3].add_(1), expected.slice(0, 1, 4, 2).mul_(2);
    EXPECT_EQ(difference(full_tensor(x), expected), "") << "to what was renewed meanwhile";
  });
}

TEST(LocalWrites, ToACopyThatIsOutOfDateAreAnError) {
  auto world = simulate(2);
  auto x = lay_out(ramp(), line(), {Shard(0)});
  auto local = to_local(x.select(0, 2));
  x.add_(1);
  EXPECT_EQ(difference(full_tensor(x), ramp() + 1), "") << "to hold it is none";
  local.mul_(10);
  auto text = error_text<c10::Error>([&] { full_tensor(x); });
  EXPECT_EQ(text,
            "[aten::select] the local tensor of this view was written to after the tensor that it views had changed. "
            "The view "
            "is a copy, brought together from other ranks, and to_local showed it as it was. Call to_local again after "
            "a write, "
            "or write to the view itself.");
}

TEST(LocalWrites, ThroughWhatWasGivenToFromLocalAreSeen) {
  in_every_world([] {
    auto mesh = line();
    Shards mine;
    for (auto& slot : mesh.slots()) mine.push_back(at::full({2, 3}, sign_of(slot.rank), at::kDouble));
    auto local = mine.size() == 1 ? mine[0] : per_rank(mine);
    auto sum = from_local(local, mesh, {Partial()}), rows = from_local(local, mesh, {Shard(0)});
    auto first = rows.select(0, 0);
    EXPECT_EQ(sum.square().sqrt().round().max().item<double>(), sum_of_signs(mesh.size()));
    local.mul_(2);
    EXPECT_EQ(sum.square().sqrt().round().max().item<double>(), 2 * sum_of_signs(mesh.size()));
    EXPECT_EQ(first.max().item<double>(), 2);
  });
}

TEST(LocalWrites, InInferenceModeAreSeen) {
  in_every_world([] {
    c10::InferenceMode inference;
    auto x = lay_out(ramp(), line(), {Partial()}), y = lay_out(ramp(), line(), {Shard(0)});
    auto row = y.select(0, 3);
    EXPECT_EQ(x.max().item<double>(), 23);
    to_local(x).mul_(10), to_local(y).mul_(10);
    EXPECT_EQ(x.max().item<double>(), 230);
    EXPECT_EQ(row.max().item<double>(), 230);
  });
}

TEST(LocalWrites, OfAStepScaleTheGradientThatTheOptimizerReads) {
  in_every_world([] {
    auto run = [](const at::Tensor& p) {
      torch::optim::SGD optimizer({p}, torch::optim::SGDOptions(0.5));
      (p * p).sum().backward();
      auto norm = p.grad().norm().item<double>();
      at::NoGradGuard no_grad;
      (is_dtensor(p) ? to_local(p.grad()) : p.grad()).mul_(1 / norm);
      optimizer.step();
      return is_dtensor(p) ? full_tensor(p.detach()) : p.detach();
    };
    auto expected = run(ramp().requires_grad_());
    for (auto& placement : {Placement(Replicate()), Placement(Shard(1))}) {
      auto x = lay_out(ramp(), line(), {placement}).requires_grad_();
      EXPECT_EQ(difference(run(x), expected, 1e-12), "") << str(placement);
    }
  });
}

TEST(LocalWrites, ThatNobodyMadeCostNoMessage) {
  auto world = simulate(4);
  auto x = lay_out(ramp(), line(), {Partial()}), y = lay_out(ramp(), line(), {Shard(0)});
  auto row = y.select(0, 2);
  x.clamp(0, 5), row.add(1);
  CommDebugMode comms;
  to_local(x), to_local(y), to_local(row), shards_of(x);
  x.clamp(0, 5), row.add(1), y.mul(2);
  EXPECT_EQ(comms.get_total_counts(), 0);
}

TEST(LocalWrites, AreNotCountedByInPlaceOpsOfTheTensorItself) {
  in_every_world([] {
    auto x = lay_out(ramp(), line(), {Shard(0)});
    std::vector<int64_t> before;
    for (auto& shard : shards_of(x)) before.push_back(shard._version());
    x.add_(1), x.mul_(x), x.select(0, 1).fill_(3), x.clamp_(0, 9), at::add_out(x, x, x), x.zero_(), x.normal_();
    at::_foreach_add_({x}, 1), x.index_fill_(0, distribute_tensor(at::tensor({int64_t{0}}), line(), {Replicate()}), 4),
        x.copy_(x + 1);
    for (size_t slot = 0; slot < before.size(); ++slot) EXPECT_EQ(shards_of(x)[slot]._version(), before[slot]);
  });
}

}  // namespace
}  // namespace intarsia::tensor_local_writes_test
