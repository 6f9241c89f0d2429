// scaled_dot_product_attention with batch, heads or queries cut.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "tests/support/compare.h"
#include "tests/support/worlds.h"

namespace intarsia::ops_attention_test {
namespace {

DeviceMesh line(int64_t n) { return init_device_mesh(at::kCPU, {n}, {"tp"}); }

TEST(Attention, OnCutHeadsMovesNothing) {
  auto world = simulate(2);
  for (auto& cut : {Placement(Shard(0)), Placement(Shard(1))}) {
    std::vector<at::Tensor> inputs;
    for (int i = 0; i < 3; ++i)
      inputs.push_back(lay_out(waves({2, 4, 5, 8}, 0.3 + i), line(2), {cut}).requires_grad_());
    CommDebugMode comms;
    auto out = at::scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], {}, 0.0, true);
    auto grads = torch::autograd::grad({out}, inputs, {at::ones_like(out)});
    EXPECT_EQ(comms.text(), "");
    EXPECT_TRUE(comms.fallbacks().empty());
    EXPECT_EQ(str(placements_of(out)), str(Placements{cut}));
    for (auto& grad : grads) EXPECT_EQ(str(placements_of(grad)), str(Placements{cut}));
  }
}

TEST(Attention, IsExactOnEveryLayout) {
  for (int64_t n : {2, 3}) {
    auto world = simulate(n);
    std::vector<at::Tensor> x = {waves({2, 4, 5, 3}, 0.3), waves({2, 4, 6, 3}, 1.3), waves({2, 4, 6, 3}, 2.1),
                                 at::Tensor()};
    for (auto q : {"[R]", "[S(0)]", "[S(1)]", "[S(2)]", "[S(3)]", "[P(sum)]"}) {
      for (auto k : {"[R]", "[S(1)]", "[S(2)]"}) {
        SCOPED_TRACE(std::string(q) + " " + k);
        for (bool causal : {false, true}) {
          auto plain = [&](auto& t) { return at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0.0, causal); };
          EXPECT_EQ(compare(plain, {x[0], x[1], x[2]}, line(n), {q, k, k}), "");
        }
        auto masked = [&](auto& t) { return at::scaled_dot_product_attention(t[0], t[1], t[2], t[3].detach()); };
        x[3] = waves({5, 6});
        EXPECT_EQ(compare(masked, x, line(n), {q, k, k, "[R]"}), "");
        x[3] = waves({2, 1, 5, 6});
        EXPECT_EQ(compare(masked, x, line(n), {q, k, k, "[S(0)]"}), "");
        x[3] = waves({2, 4, 5, 6}) > -1;
        EXPECT_EQ(compare(masked, x, line(n), {q, k, k, "[S(1)]"}), "");
      }
    }
  }
}

TEST(Attention, TakesGroupedQueries) {
  for (int64_t n : {2, 3}) {
    auto world = simulate(n);
    std::vector<at::Tensor> x = {waves({2, 4, 5, 3}, 0.3), waves({2, 2, 5, 3}, 1.3), waves({2, 2, 5, 3}, 2.1)};
    for (auto at : {"[R]", "[S(0)]", "[S(1)]", "[S(2)]"}) {
      auto grouped = [](auto& t) {
        return at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0.0, true, std::nullopt, true);
      };
      EXPECT_EQ(compare(grouped, x, line(n), {at, at, at}), "") << at << " on " << n;
    }
  }
}

TEST(Attention, ByTheMathPathIsExact) {
  auto world = simulate(2);
  auto math = [](auto& t) { return std::get<0>(at::_scaled_dot_product_attention_math(t[0], t[1], t[2])); };
  std::vector<at::Tensor> x = {waves({2, 4, 5, 3}, 0.3), waves({2, 4, 5, 3}, 1.3), waves({2, 4, 5, 3}, 2.1)};
  for (auto at : {"[S(0)]", "[S(1)]", "[S(2)]"}) EXPECT_EQ(compare(math, x, line(2), {at, at, at}), "") << at;
}

}  // namespace
}  // namespace intarsia::ops_attention_test
