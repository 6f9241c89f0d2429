#include <gtest/gtest.h>

#include <random>

#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/nn/redistribute_module.h"
#include "tests/support/compare.h"
#include "tests/support/error_text.h"
#include "tests/support/world.h"

#include <torch/nn/modules/linear.h>

namespace intarsia {
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
          SCOPED_TRACE(c10::str(from, " on ", c10::IntArrayRef(a.ranks), " to ", to, " on ", c10::IntArrayRef(b.ranks)));
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
    for (auto& whole : {at::scalar_tensor(7, at::kDouble), at::arange(5, at::kLong).to(at::kBool), at::arange(7).to(at::kBFloat16),
                        at::arange(6).to(at::kComplexFloat).conj()}) {
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

TEST(ToMesh, GroupsOfACutMeshAreRefused) {
  for_each_world({4}, [](int64_t) {
    auto mesh = init_device_mesh(c10::kCPU, {2, 2}, {"dp", "tp"});
    auto x = distribute_tensor(at::zeros({4}), mesh, {Replicate(), Replicate()}, std::nullopt);
    EXPECT_EQ(error_text<c10::NotImplementedError>([&] { redistribute(x, mesh["tp"], {Shard(0)}); }),
              "[redistribute] DeviceMesh(cpu, tp=2; ranks [0 1] [2 3]) was cut out of another mesh and stands for 2 groups of "
              "ranks, which hold "
              "tensors of their own. Between meshes, use ones that were made directly.");
  });
}

}  // namespace
}  // namespace intarsia
