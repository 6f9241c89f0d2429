// linear and matmul stay whole: cut leading dims are never folded, and gradients of weights come out pending.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "tests/support/compare.h"
#include "tests/support/error_text.h"
#include "tests/support/worlds.h"

namespace intarsia::ops_linear_test {
namespace {

DeviceMesh line(int64_t n) { return init_device_mesh(at::kCPU, {n}, {"tp"}); }

TEST(Linear, OfACutSequenceMovesNothing) {
  auto world = simulate(3);
  auto mesh = line(3);
  auto x = lay_out(waves({2, 5, 4}), mesh, {Shard(1)}).requires_grad_();
  auto weight = lay_out(waves({6, 4}), mesh, {Replicate()}).requires_grad_();
  auto bias = lay_out(waves({6}), mesh, {Replicate()}).requires_grad_();
  CommDebugMode comms;
  auto y = at::linear(x, weight, bias);
  auto grads = torch::autograd::grad({y}, {x, weight, bias}, {at::ones_like(y)});
  EXPECT_EQ(str(placements_of(y)), "[S(1)]");
  EXPECT_EQ(str(placements_of(grads[0])), "[S(1)]");
  EXPECT_EQ(str(placements_of(grads[1])), "[P(sum)]");
  EXPECT_EQ(str(placements_of(grads[2])), "[P(sum)]");
  EXPECT_EQ(comms.text(), "");
}

TEST(Linear, WithWeightsCutByOutputAndByInputMovesNothing) {
  auto world = simulate(2);
  auto mesh = line(2);
  auto x = lay_out(waves({2, 5, 4}), mesh, {Replicate()}).requires_grad_();
  auto up = lay_out(waves({6, 4}), mesh, {Shard(0)}).requires_grad_();
  auto up_bias = lay_out(waves({6}), mesh, {Shard(0)}).requires_grad_();
  auto down = lay_out(waves({4, 6}), mesh, {Shard(1)}).requires_grad_();
  CommDebugMode comms;
  auto hidden = at::linear(x, up, up_bias);
  EXPECT_EQ(str(placements_of(hidden)), "[S(2)]");
  auto y = at::linear(hidden, down);
  EXPECT_EQ(str(placements_of(y)), "[P(sum)]");
  auto grads = torch::autograd::grad({y}, {x, up, up_bias, down}, {lay_out(waves({2, 5, 4}), mesh, {Replicate()})});
  EXPECT_EQ(str(placements_of(grads[0])), "[P(sum)]");
  EXPECT_EQ(str(placements_of(grads[1])), "[S(0)]");
  EXPECT_EQ(str(placements_of(grads[2])), "[S(0)]");
  EXPECT_EQ(str(placements_of(grads[3])), "[S(1)]");
  EXPECT_EQ(comms.text(), "");
}

TEST(Linear, GivesValuesAndGradientsOfThePlainOp) {
  for (int64_t n : {2, 3}) {
    auto world = simulate(n);
    for (auto x : {"[R]", "[S(0)]", "[S(1)]", "[S(2)]", "[P(sum)]"}) {
      for (auto weight : {"[R]", "[S(0)]", "[S(1)]"}) {
        for (auto bias : {"[R]", "[S(0)]"}) {
          auto linear = [](auto& t) { return at::linear(t[0], t[1], t[2]); };
          EXPECT_EQ(compare(linear, {waves({2, 5, 4}), waves({3, 4}), waves({3})}, line(n), {x, weight, bias}), "")
              << x << " " << weight << " " << bias;
        }
      }
    }
  }
}

TEST(Linear, OnTwoAxesCutsBatchAndSequence) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
  auto linear = [](auto& t) { return at::linear(t[0], t[1], t[2]); };
  std::vector<at::Tensor> inputs = {waves({3, 5, 4}), waves({6, 4}), waves({6})};
  EXPECT_EQ(compare(linear, inputs, mesh, {"[S(0), S(1)]", "[R, R]", "[R, R]"}), "");
  EXPECT_EQ(compare(linear, inputs, mesh, {"[S(0), R]", "[R, S(0)]", "[R, S(0)]"}), "");
  EXPECT_EQ(compare(linear, inputs, mesh, {"[S(0), S(2)]", "[R, S(1)]", "[R, R]"}), "");
  EXPECT_EQ(compare(linear, inputs, mesh, {"[S(1), S(1)]", "[S(0), S(1)]", "[R, R]"}), "");
}

TEST(Matmul, GivesValuesAndGradientsForAllShapes) {
  auto world = simulate(3);
  using Shape = std::vector<int64_t>;
  std::vector<std::pair<Shape, Shape>> shapes = {
      {{4}, {4}},       {{5, 4}, {4}},    {{4}, {4, 3}},       {{5, 4}, {4, 3}},       {{2, 5, 4}, {4, 3}},
      {{2, 5, 4}, {4}}, {{4}, {2, 4, 3}}, {{5, 4}, {2, 4, 3}}, {{2, 5, 4}, {2, 4, 3}}, {{2, 1, 5, 4}, {6, 4, 3}}};
  auto matmul = [](auto& t) { return at::matmul(t[0], t[1]); };
  for (auto& [a, b] : shapes) {
    for (int64_t i = -1; i < static_cast<int64_t>(a.size()); ++i) {
      for (int64_t k = -1; k < static_cast<int64_t>(b.size()); ++k) {
        auto left = i < 0 ? "[R]" : "[S(" + std::to_string(i) + ")]",
             right = k < 0 ? "[R]" : "[S(" + std::to_string(k) + ")]";
        EXPECT_EQ(compare(matmul, {waves(a), waves(b)}, line(3), {left, right}), "")
            << at::IntArrayRef(a) << left << " " << at::IntArrayRef(b) << right;
      }
    }
  }
}

TEST(Linear, HasSecondGradients) {
  auto world = simulate(2);
  auto penalty = [](auto& t) {
    auto y = at::linear(t[0], t[1]);
    auto g = torch::autograd::grad({(y * y).sum()}, {t[0], t[1]}, {}, true, true);
    return (g[0] * g[0]).sum() + (g[1] * g[1]).sum();
  };
  EXPECT_EQ(compare(penalty, {waves({2, 3, 4}), waves({3, 4})}, line(2), {"[S(1)]", "[R]"}, 1e-10), "");
  EXPECT_EQ(compare(penalty, {waves({2, 3, 4}), waves({3, 4})}, line(2), {"[S(2)]", "[S(1)]"}, 1e-10), "");
}

TEST(Linear, SaysWhatThePlainOpSaysOfWrongShapes) {
  auto world = simulate(2);
  auto x = lay_out(waves({2, 3, 4}), line(2), {Shard(1)}), weight = lay_out(waves({3, 5}), line(2), {Replicate()});
  auto plain = error_text<c10::Error>([] { at::linear(waves({2, 3, 4}), waves({3, 5})); });
  EXPECT_EQ(error_text<c10::Error>([&] { at::linear(x, weight); }), plain);
}

}  // namespace
}  // namespace intarsia::ops_linear_test
