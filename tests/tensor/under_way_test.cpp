// What is under way is sent as it was when it was begun, whatever is written meanwhile.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/comm/axis.h"
#include "tests/support/lay_out.h"
#include "tests/support/worlds.h"

namespace intarsia::tensor_under_way_test {
namespace {

DeviceMesh line() { return init_device_mesh(at::kCPU, {current_world().size()}); }
at::Tensor ramp() { return at::arange(35, at::kDouble).reshape({7, 5}); }

template <class Body>
void at_every_arrival(Body body) {
  if (process_world()) return body();
  for (auto arrival : {Arrival::at_once, Arrival::late, Arrival::at_random}) {
    for (int64_t n : {1, 2, 3, 4}) {
      SCOPED_TRACE("arrival " + std::to_string(static_cast<int>(arrival)) + " in a simulation of " + std::to_string(n));
      auto world = simulate(n, arrival);
      body();
    }
  }
}

const std::vector<Placement> kFrom = {Replicate(),        Shard(0),  Shard(1),
                                      StridedShard(0, 2), Partial(), Partial(ReduceOp::max)};
const std::vector<Placement> kTo = {Replicate(), Shard(0), Shard(1), StridedShard(1, 2)};
const std::vector<std::pair<const char*, void (*)(const at::Tensor&)>> kWrites = {
    {"a dispatched write", [](const at::Tensor& x) { at::Tensor(x).mul_(100); }},
    {"a write through local memory", [](const at::Tensor& x) { to_local(x).mul_(100); }},
    {"zero_", [](const at::Tensor& x) { at::Tensor(x).zero_(); }},
};

TEST(PendingCollectives, AMoveTakesTheValuesOfItsBeginning) {
  at_every_arrival([] {
    for (auto& from : kFrom) {
      for (auto& to : kTo) {
        for (auto& [name, write] : kWrites) {
          auto x = lay_out(ramp(), line(), {from});
          auto moved = redistribute(x, {to}, /*async_op=*/true);
          if (from == to) continue;  // then it is the same tensor
          write(x);
          EXPECT_EQ(difference(full_tensor(moved), ramp()), "") << str(from) << " to " << str(to) << ", " << name;
        }
      }
    }
  });
}

TEST(PendingCollectives, ManyMovesFinishInAnyOrder) {
  at_every_arrival([] {
    std::vector<at::Tensor> moved;
    auto x = lay_out(ramp(), line(), {Shard(0)});
    for (int i = 0; i < 12; ++i) {
      moved.push_back(redistribute(x, {kTo[i % 3 == 0 ? 0 : 2]}, /*async_op=*/true));
      x.add_(1);
    }
    for (auto i : {3, 0, 11, 5, 1, 2, 4, 10, 9, 8, 7, 6})
      EXPECT_EQ(difference(full_tensor(moved[i]), ramp() + i), "") << i;
  });
}

TEST(PendingCollectives, ASimulationShowsWhoWritesTooEarly) {
  for (auto arrival : {Arrival::at_once, Arrival::late}) {
    auto world = simulate(2, arrival);
    Shards mine = {at::ones({3}), at::ones({3})}, all = {at::zeros({6}), at::zeros({6})};
    Wait wait;
    Axis::of(line(), 0).all_gather(mine, all, {{3, 3}, {3, 3}}, &wait);
    mine[0].fill_(7);  // which the caller must not do
    if (wait) wait();
    EXPECT_EQ(all[1][0].item<float>(), arrival == Arrival::late ? 7 : 1);
  }
}

TEST(PendingCollectives, AMoveToTheSameLayoutIsACopyToo) {
  at_every_arrival([] {
    auto x = lay_out(ramp(), line(), {Shard(0)});
    auto moved = redistribute(x, {Shard(0)}, /*async_op=*/true);
    x.add_(1);
    EXPECT_EQ(difference(full_tensor(moved), ramp()), "");
    EXPECT_FALSE(is_alias_of(moved, x));
  });
}

TEST(PendingCollectives, AWaitThatIsDroppedLeavesTheOthersRight) {
  at_every_arrival([] {
    auto x = lay_out(ramp(), line(), {Shard(0)});
    redistribute(x, {Replicate()}, /*async_op=*/true);
    auto moved = redistribute(x, {Shard(1)}, /*async_op=*/true);
    EXPECT_EQ(difference(full_tensor(moved), ramp()), "");
  });
}

}  // namespace
}  // namespace intarsia::tensor_under_way_test
