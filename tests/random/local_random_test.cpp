// Plain tensors of which each rank has a part draw the numbers of one device.

#include "intarsia/random/local_random_scope.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/intarsia.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "tests/support/error_text.h"
#include "tests/support/worlds.h"

namespace intarsia::random_local_random_test {
namespace {

DeviceMesh ranks() { return init_device_mesh(at::kCPU, {current_world().size()}, {"dp"}); }
at::Tensor part(const at::Tensor& all, const DeviceMesh& mesh, const Placements& placements) {
  return to_local(distribute_tensor(all, mesh, placements, std::nullopt)).detach();
}
at::Tensor joined(const at::Tensor& local, const DeviceMesh& mesh, const Placements& placements) {
  return full_tensor(from_local(local, mesh, placements));
}

using Draw = std::function<at::Tensor(const at::Tensor&)>;
const std::vector<std::pair<const char*, Draw>>& draws() {
  static const std::vector<std::pair<const char*, Draw>> all = {
      {"dropout", [](auto& x) { return torch::dropout(x, 0.4, true); }},
      {"alpha_dropout", [](auto& x) { return torch::alpha_dropout(x, 0.4, true); }},
      {"feature_dropout", [](auto& x) { return torch::feature_dropout(x, 0.4, true); }},
      {"bernoulli", [](auto& x) { return torch::bernoulli(x.sigmoid()); }},
      {"rand_like", [](auto& x) { return torch::rand_like(x); }},
      {"randn_like", [](auto& x) { return torch::randn_like(x); }},
      {"random_", [](auto& x) { return torch::empty_like(x).random_(5, 90); }},
      {"exponential_", [](auto& x) { return torch::empty_like(x).exponential_(2); }},
      {"two draws", [](auto& x) { return torch::rand_like(x) + torch::randn_like(x); }}};
  return all;
}

TEST(LocalRandom, IsWhatOneDeviceDrawsForTheWhole) {
  for (auto& [name, draw] : draws()) {
    SCOPED_TRACE(name);
    using Case = std::pair<std::vector<int64_t>, int64_t>;
    for (auto& [shape, dim] : {Case{{24, 3}, 0}, Case{{24, 5, 40}, 0}, Case{{3, 24}, -1}, Case{{60, 240}, 1}}) {
      in_every_world([&] {
        auto mesh = ranks();
        auto x = torch::sin(torch::arange(c10::multiply_integers(shape), at::kDouble)).view(shape);
        torch::manual_seed(11);
        auto expected = draw(x);
        auto next = torch::rand({2});
        torch::manual_seed(11);
        LocalRandomScope scope(mesh, {Shard(dim)});
        auto local = draw(part(x, mesh, {Shard(dim)}));
        EXPECT_TRUE(torch::equal(joined(local, mesh, {Shard(dim)}), expected));
        LocalRandomScope off(std::nullopt);
        EXPECT_TRUE(torch::equal(torch::rand({2}), next));  // the generator is that of one device
      });
    }
  }
}

TEST(LocalRandom, PartsMayHaveDifferentSizes) {
  in_every_world([] {
    auto mesh = ranks();
    auto n = mesh.size(), rows = n * (n + 1) / 2;  // 1, 2, 3, ...
    auto of_rank = [&](const at::Tensor& all, int64_t rank) { return all.narrow(0, rank * (rank + 1) / 2, rank + 1); };
    Shards locals, goals;
    torch::manual_seed(12);
    auto expected = torch::dropout(torch::ones({rows, 4}), 0.5, true);
    for (auto& slot : mesh.slots()) {
      locals.push_back(torch::ones({slot.rank + 1, 4}));
      goals.push_back(of_rank(expected, slot.rank));
    }
    torch::manual_seed(12);
    LocalRandomScope scope(mesh);
    auto drawn = torch::dropout(locals.size() == 1 ? locals[0] : per_rank(locals), 0.5, true);
    for (size_t slot = 0; slot < goals.size(); ++slot) {
      EXPECT_TRUE(torch::equal(value_at(drawn, slot), goals[slot])) << slot;
    }
  });
}

TEST(LocalRandom, OnTwoAxesRowsAndColumnsAreSplit) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
  Placements placements = {Shard(0), Shard(-1)};
  auto x = torch::ones({8, 6});
  torch::manual_seed(13);
  auto expected = torch::dropout(x, 0.5, true);
  torch::manual_seed(13);
  LocalRandomScope scope(mesh, placements);
  EXPECT_TRUE(torch::equal(joined(torch::dropout(part(x, mesh, placements), 0.5, true), mesh, placements), expected));
}

TEST(LocalRandom, OnASliceTheOthersDrawAlike) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
  torch::manual_seed(14);
  auto expected = torch::dropout(torch::ones({8, 6}), 0.5, true);
  torch::manual_seed(14);
  LocalRandomScope scope(mesh["dp"]);
  auto drawn = torch::dropout(part(torch::ones({8, 6}), mesh, {Shard(0), Replicate()}), 0.5, true);
  for (size_t slot = 0; slot < 4; ++slot) {
    EXPECT_TRUE(torch::equal(value_at(drawn, slot), expected.chunk(2)[slot / 2])) << slot;
  }
}

TEST(LocalRandom, GoesOnBesideDistributedTensors) {
  in_every_world([] {
    auto mesh = ranks();
    auto x = torch::ones({24, 3});
    torch::manual_seed(15);
    auto drop = [](const at::Tensor& t) { return torch::dropout(t, 0.5, true); };
    auto first = drop(x), second = drop(x), third = drop(x);
    torch::manual_seed(15);
    LocalRandomScope scope(mesh);
    EXPECT_TRUE(torch::equal(joined(drop(part(x, mesh, {Shard(0)})), mesh, {Shard(0)}), first));
    EXPECT_TRUE(torch::equal(full_tensor(drop(distribute_tensor(x, mesh, {Shard(1)}))), second));
    EXPECT_TRUE(torch::equal(joined(drop(part(x, mesh, {Shard(0)})), mesh, {Shard(0)}), third));
  });
}

TEST(LocalRandom, TensorsMadeInItDifferByRank) {
  in_every_world([] {
    auto mesh = ranks();
    torch::manual_seed(16);
    auto expected = torch::randn({2 * mesh.size(), 3});
    torch::manual_seed(16);
    LocalRandomScope scope(mesh);
    EXPECT_TRUE(torch::equal(joined(torch::randn({2, 3}), mesh, {Shard(0)}), expected));
  });
}

TEST(LocalRandom, WhatIsComputedAgainDrawsTheSame) {
  in_every_world([] {
    auto mesh = ranks();
    auto gradient = [&](bool again) {
      torch::manual_seed(17);
      auto x = part(torch::ones({24, 3}), mesh, {Shard(0)}).requires_grad_();
      RecomputedSegment segment = [](auto& in) { return std::vector{torch::dropout(in[0], 0.5, true).square()}; };
      at::Tensor y;
      {
        LocalRandomScope scope(mesh);
        y = again ? recompute_segment(segment, {x})[0] : segment({x})[0];
      }
      y.sum().backward();  // outside of the scope
      return joined(x.grad(), mesh, {Shard(0)});
    };
    EXPECT_TRUE(torch::equal(gradient(true), gradient(false)));
  });
}

TEST(LocalRandom, RefusesWhatAreNoPartsOfOne) {
  auto world = simulate(2);
  auto mesh = ranks();
  EXPECT_EQ(
      error_text<c10::ValueError>([&] { LocalRandomScope scope(mesh, {Shard(0), Shard(1)}); }),
      "[LocalRandomScope] 2 placements given, but DeviceMesh(cpu, dp=2) has 1 axes. Give one placement per axis.");
  EXPECT_EQ(
      error_text<c10::ValueError>([&] { LocalRandomScope scope(mesh, {Partial()}); }),
      "[LocalRandomScope] the parts [P(sum)] are not split by axes that cut different dims. Give a Replicate or a "
      "Shard for each axis, each of another dim; or flatten axes that cut one dim.");
  LocalRandomScope scope(mesh);
  auto rows = part(torch::ones({4, 2}), mesh, {Shard(0)});
  EXPECT_EQ(error_text<c10::NotImplementedError>([&] { torch::native_dropout(rows, 0.5, true); }),
            "[LocalRandomScope] aten::native_dropout draws inside of a kernel, which simulated ranks run one after the "
            "other. Use an op that is made of others, such as dropout.");
  auto leaf = rows.clone().requires_grad_();
  EXPECT_EQ(
      error_text<c10::NotImplementedError>([&] { leaf.uniform_(); }),
      "[LocalRandomScope] aten::uniform_ on a tensor that requires grad. Draw into a new tensor, or in a NoGradGuard.");
  auto unlike = per_rank({torch::ones({2, 3}), torch::ones({1, 3})});
  EXPECT_EQ(
      error_text<c10::NotImplementedError>([&] { torch::bernoulli(unlike); }),
      "[LocalRandomScope] aten::bernoulli_ of a tensor of probabilities whose parts have different sizes: [S(0)] of "
      "[3, 3]. Give parts of one size, or draw rand_like and compare.");
  auto wide = per_rank({torch::ones({2, 3}), torch::ones({2, 4})});
  EXPECT_EQ(error_text<c10::ValueError>([&] { torch::rand_like(wide); }),
            "[LocalRandomScope] the ranks of DeviceMesh(cpu, dp=2) draw tensors that are not the parts [S(0)] of one: "
            "rank 0 [2, 3], rank 1 [2, 4]. Draw tensors that differ along the dims that are split only.");
}

}  // namespace
}  // namespace intarsia::random_local_random_test
