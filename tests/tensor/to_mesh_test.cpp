#include <gtest/gtest.h>

#include <random>

#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/nn/redistribute_module.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "tests/support/compare.h"
#include "tests/support/error_text.h"
#include "tests/support/world.h"

#include <torch/nn/modules/linear.h>

namespace intarsia::tensor_to_mesh_test {
namespace {

struct Place {
  std::vector<int64_t> shape, ranks;
  std::vector<const char*> placements;
};

const std::vector<Place> kPlaces = {
    {{4}, {0, 1, 2, 3}, {"[R]", "[S(0)]", "[S(1)]", "[SS(0, 2)]", "[P(sum)]", "[P(max)]"}},
    {{2}, {0, 1}, {"[R]", "[S(0)]", "[S(1)]", "[P(sum)]", "[P(avg)]"}},
    {{2}, {3, 1}, {"[S(0)]", "[SS(1, 2)]"}},
    {{1}, {2}, {"[R]", "[S(0)]"}},
    {{2, 2}, {3, 1, 0, 2}, {"[S(0), S(1)]", "[S(0), S(0)]", "[P(sum), S(0)]", "[P(sum), P(sum)]"}},
};

template <class Body>
void for_each_pair(Body body) {
  for (auto& a : kPlaces) {
    for (auto& b : kPlaces) {
      DeviceMesh first(c10::kCPU, a.shape, a.ranks), second(c10::kCPU, b.shape, b.ranks);
      if (first == second) continue;
      for (auto* from : a.placements) {
        for (auto* to : b.placements) {
          SCOPED_TRACE(
              c10::str(from, " on ", c10::IntArrayRef(a.ranks), " to ", to, " on ", c10::IntArrayRef(b.ranks)));
          body(first, parse_placements(from), second, parse_placements(to));
        }
      }
    }
  }
}

bool takes_part(const DeviceMesh& mesh) { return !mesh.slots().empty(); }

TEST(ToMesh, EveryLayoutReachesEveryOther) {
  for_each_world({4}, [](int64_t) {
    for (auto shape : {std::vector<int64_t>{8, 6}, {5, 3}, {1, 2}, {0, 3}}) {
      auto whole = waves(shape);
      for_each_pair([&](auto& first, auto from, auto& second, auto to) {
        auto moved = redistribute(distribute_tensor(whole, first, from, std::nullopt), second, to);
        EXPECT_EQ(str(layout_of(moved)), str(*Layout::get(second, to)));
        EXPECT_TRUE(!takes_part(second) || full_tensor(moved).equal(whole));
      });
    }
  });
}

TEST(ToMesh, PiecesLargerThanTheCachesArrive) {
  for_each_world({4}, [](int64_t) {
    DeviceMesh two(c10::kCPU, {2}, {0, 1}), four(c10::kCPU, {4}, {0, 1, 2, 3});
    auto whole = at::arange(3 << 20, at::kLong).reshape({1536, 2048});  // 24 MiB
    for (auto* from : {"[S(0)]", "[S(1)]", "[R]"}) {
      for (auto* to : {"[S(0)]", "[S(1)]", "[R]"}) {
        auto x = distribute_tensor(whole, two, parse_placements(from), std::nullopt);
        EXPECT_TRUE(full_tensor(redistribute(x, four, parse_placements(to))).equal(whole)) << from << " to " << to;
      }
    }
  });
}

TEST(ToMesh, GradientsComeBackToTheFirstMesh) {
  for_each_world({4}, [](int64_t) {
    auto whole = waves({5, 3}), weight = waves({5, 3}, 0.3);
    for_each_pair([&](auto& first, auto from, auto& second, auto to) {
      auto x = distribute_tensor(whole, first, from, std::nullopt).requires_grad_();
      auto moved = redistribute(x, second, to);
      auto seed = distribute_tensor(weight, second, Placements(second.ndim(), Replicate()), std::nullopt);
      torch::autograd::backward({moved}, {seed});
      EXPECT_EQ(mesh_of(x.grad()), first);
      EXPECT_TRUE(!takes_part(first) || full_tensor(x.grad()).allclose(weight));
    });
  });
}

TEST(ToMesh, AScalarAndOtherDtypesTravelToo) {
  for_each_world({4}, [](int64_t) {
    DeviceMesh first(c10::kCPU, {2}, {0, 1}), second(c10::kCPU, {3}, {1, 2, 3});
    for (auto& whole : {at::scalar_tensor(7, at::kDouble), at::arange(5, at::kLong).to(at::kBool),
                        at::arange(7).to(at::kBFloat16), at::arange(6).to(at::kComplexFloat).conj()}) {
      auto placements = whole.dim() ? Placements{Shard(0)} : Placements{Replicate()};
      auto moved = redistribute(distribute_tensor(whole, first, placements, std::nullopt), second, placements);
      EXPECT_TRUE(!takes_part(second) || full_tensor(moved).equal(whole));
    }
  });
}

TEST(ToMesh, SendsOneMessageWithExactlyWhatIsLacking) {
  for_each_world({4}, [](int64_t) {
    DeviceMesh two(c10::kCPU, {2}, {0, 1}), four(c10::kCPU, {4}, {0, 1, 2, 3});
    auto x = distribute_tensor(at::zeros({8, 4}), two, {Shard(0)}, std::nullopt);
    CommDebugMode trace;
    redistribute(x, four, {Shard(0)});
    ASSERT_EQ(trace.events().size(), 1u);
    EXPECT_EQ(trace.events()[0].kind, "mesh_to_mesh");
    auto rank = current_world().simulated() ? 1 : current_world().hosted()[0];
    EXPECT_EQ(trace.events()[0].sent, current_world().simulated() || rank == 1 ? 64 : rank == 0 ? 32 : 0);
  });
}

TEST(ToMesh, AModuleMovesInOneExchange) {
  for_each_world({4}, [](int64_t) {
    DeviceMesh two(c10::kCPU, {2}, {0, 1}), all(c10::kCPU, {2, 2}, {0, 1, 2, 3});
    torch::nn::Linear linear(6, 5);
    auto weight = waves({5, 6}).to(at::kFloat), bias = waves({5}).to(at::kFloat);
    linear->weight.set_data(distribute_tensor(weight, two, {Shard(0)}, std::nullopt));
    linear->bias.set_data(distribute_tensor(bias, two, {Replicate()}, std::nullopt));
    linear->weight.mutable_grad() = distribute_tensor(weight * 2, two, {Shard(1)}, std::nullopt);
    auto handle = linear->weight;
    CommDebugMode trace;
    redistribute(*linear, all, [](auto&, auto& tensor) {
      return Placements{Shard(0), tensor.dim() > 1 ? Placement(Shard(1)) : Replicate()};
    });
    EXPECT_EQ(trace.events().size(), 1u);
    EXPECT_TRUE(full_tensor(handle.detach()).equal(weight));
    EXPECT_TRUE(full_tensor(linear->bias.detach()).equal(bias));
    EXPECT_TRUE(full_tensor(linear->weight.grad()).equal(weight * 2));
    EXPECT_TRUE(linear->weight.requires_grad());
  });
}

// A replicated tensor on a cut mesh: `base` times the number of its group, from 1.
at::Tensor numbered_groups(const at::Tensor& base, const DeviceMesh& mesh) {
  Shards shards;
  for (auto& slot : mesh.slots()) shards.push_back(base * (slot.group + 1));
  Placements whole(mesh.ndim(), Replicate());
  if (shards.empty()) return distribute_tensor(base, mesh, whole, std::nullopt);  // on other ranks
  return from_local(shards.size() == 1 ? shards[0] : per_rank(shards), mesh, whole);
}

// What every hosted rank of its mesh sees of the whole tensor, as a multiple of `base`; by rank, 0 where it holds
// nothing.
std::vector<double> multiples(const at::Tensor& tensor, const at::Tensor& base) {
  std::vector<double> result(4, 0);
  auto whole = redistribute(tensor, Placements(mesh_of(tensor).ndim(), Replicate()));
  for (size_t slot = 0; slot < shards_of(whole).size(); ++slot) {
    auto times = (shards_of(whole)[slot] / base).flatten();
    EXPECT_TRUE(times.allclose(times[0].expand_as(times)));
    result[mesh_of(whole).slots()[slot].rank] = std::round(times[0].item<double>());
  }
  return result;
}

// Of what is expected of all ranks, that of the hosted ones.
std::vector<double> of_hosted(std::vector<double> expected) {
  for (int64_t rank = 0; rank < 4; ++rank) {
    auto& hosted = current_world().hosted();
    if (!std::count(hosted.begin(), hosted.end(), rank)) expected[rank] = 0;
  }
  return expected;
}

using Multiples = std::vector<double>;

TEST(ToMesh, EveryGroupOfACutMeshGetsTheTensorAndGradientsAddUp) {
  for_each_world({4}, [](int64_t) {
    auto mesh = init_device_mesh(c10::kCPU, {2, 2}, {"dp", "tp"});
    auto base = at::arange(1, 16, at::kDouble).reshape({5, 3});
    for (auto* from : {"[R, R]", "[S(0), S(1)]", "[P(sum), S(0)]"}) {
      for (auto* to : {"[R]", "[S(0)]", "[S(1)]"}) {
        auto x = distribute_tensor(base, mesh, parse_placements(from), std::nullopt).requires_grad_();
        auto moved = redistribute(x, mesh["tp"], parse_placements(to));
        EXPECT_EQ(multiples(moved.detach(), base), of_hosted({1, 1, 1, 1})) << from << " to " << to;
        torch::autograd::backward({moved}, {numbered_groups(base, mesh["tp"])});
        EXPECT_EQ(multiples(x.grad(), base), of_hosted({3, 3, 3, 3})) << from << " to " << to;
      }
    }
  });
}

TEST(ToMesh, AGroupGetsTheTensorOfTheGroupThatItsRanksAreIn) {
  for_each_world({4}, [](int64_t) {
    auto mesh = init_device_mesh(c10::kCPU, {2, 2}, {"dp", "tp"}),
         singles = init_device_mesh(c10::kCPU, {4, 1}, {"a", "b"})["b"];
    DeviceMesh low(c10::kCPU, {2}, {1, 0}), high(c10::kCPU, {1}, {3});
    auto base = at::arange(1, 11, at::kDouble).reshape({5, 2});
    struct Case {
      DeviceMesh from, to;
      Multiples values, gradients;  // of gradients that are the base in every group, times its number
    };
    for (auto& [from, to, values, gradients] : std::vector<Case>{{mesh["tp"], singles, {1, 1, 2, 2}, {3, 3, 7, 7}},
                                                                 {mesh["dp"], singles, {1, 2, 1, 2}, {4, 6, 4, 6}},
                                                                 {mesh["tp"], low, {1, 1, 0, 0}, {1, 1, 0, 0}},
                                                                 {mesh["tp"], high, {0, 0, 0, 2}, {0, 0, 1, 1}}}) {
      auto x = numbered_groups(base, from).requires_grad_();
      auto moved = redistribute(x, to, {Shard(0)});
      EXPECT_EQ(multiples(moved.detach(), base), of_hosted(values)) << str(to);
      torch::autograd::backward({moved}, {numbered_groups(base, to)});
      EXPECT_EQ(multiples(x.grad(), base), of_hosted(gradients)) << str(to);
    }
  });
}

TEST(ToMesh, RanksOfSeveralGroupsDoNotSayWhoseTensorTheyWant) {
  for_each_world({4}, [](int64_t) {
    auto mesh = init_device_mesh(c10::kCPU, {2, 2}, {"dp", "tp"});
    auto x = numbered_groups(at::ones({4}), mesh["tp"]);
    EXPECT_EQ(
        error_text<c10::ValueError>([&] { redistribute(x, mesh["dp"], {Shard(0)}); }),
        "[redistribute] DeviceMesh(cpu, tp=2; ranks [0 1] [2 3]) is a slice of another mesh and stands for 2 groups of "
        "ranks, "
        "which hold different tensors. The ranks [0, 2] of DeviceMesh(cpu, dp=2; ranks [0 2] [1 3]) are not all in one "
        "of "
        "them, so it is ambiguous whose tensor they get. Use meshes whose ranks are, or gather the tensors first.");
  });
}

}  // namespace
}  // namespace intarsia::tensor_to_mesh_test
