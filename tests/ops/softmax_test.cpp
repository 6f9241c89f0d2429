// softmax and cross entropy over a cut dim: exact, and only statistics travel.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "tests/support/compare.h"
#include "tests/support/error_text.h"
#include "tests/support/worlds.h"

namespace intarsia::ops_softmax_test {
namespace {

DeviceMesh line(int64_t n) { return init_device_mesh(at::kCPU, {n}, {"tp"}); }

TEST(Softmax, OverACutDimIsThatOfThePlainOp) {
  for (int64_t n : {2, 3, 4}) {
    auto world = simulate(n);
    for (auto at : {"[S(0)]", "[S(1)]", "[S(2)]", "[SS(1, 2)]", "[P(sum)]", "[R]"}) {
      SCOPED_TRACE(std::string(at) + " on " + std::to_string(n));
      for (int64_t dim : {0, 1, -1}) {
        EXPECT_EQ(compare([&](auto& t) { return at::softmax(t[0], dim); }, {waves({3, 5, 4})}, line(n), {at}), "");
        EXPECT_EQ(compare([&](auto& t) { return at::log_softmax(t[0], dim); }, {waves({3, 5, 4})}, line(n), {at}), "");
        EXPECT_EQ(compare([&](auto& t) { return at::logsumexp(t[0], {dim}, true); }, {waves({3, 5, 4})}, line(n), {at}),
                  "");
        EXPECT_EQ(compare([&](auto& t) { return at::_safe_softmax(t[0], dim); }, {waves({3, 5, 4})}, line(n), {at}),
                  "");
      }
      EXPECT_EQ(compare([&](auto& t) { return at::logsumexp(t[0], {0, 1}); }, {waves({3, 5, 4})}, line(n), {at}), "");
    }
  }
}

TEST(Softmax, MovesTheLargestAndTheSumOnly) {
  auto world = simulate(4);
  auto x = lay_out(waves({3, 8}).to(at::kFloat), line(4), {Shard(1)}).requires_grad_();
  CommDebugMode comms;
  auto y = at::softmax(x, 1);
  EXPECT_EQ(str(placements_of(y)), "[S(1)]");
  EXPECT_EQ(comms.text(), "all_reduce(max) tp 18B\nall_reduce(sum) tp 18B\n");
  comms.enter();
  y.backward(at::ones_like(y));
  EXPECT_EQ(comms.text(), "all_reduce(sum) tp 18B\n");
  EXPECT_EQ(str(placements_of(x.grad())), "[S(1)]");
}

TEST(Softmax, OfHalvesIsSummedInFloat) {
  auto world = simulate(3);
  for (auto type : {at::kHalf, at::kBFloat16}) {
    auto x = waves({2, 40}).to(type);
    auto y = at::softmax(lay_out(x, line(3), {Shard(1)}), 1);
    EXPECT_EQ(difference(full_tensor(y), at::softmax(x, 1), type == at::kHalf ? 1e-3 : 1e-2), "");
  }
}

TEST(Softmax, KeepsMinusInfinities) {
  auto world = simulate(3);
  auto x = waves({2, 5});
  x[0].slice(0, 2).fill_(-INFINITY);
  x[1].fill_(-INFINITY);
  auto cut = lay_out(x, line(3), {Shard(1)});
  EXPECT_TRUE(at::allclose(full_tensor(at::softmax(cut, 1)), at::softmax(x, 1), 1e-12, 1e-12, true));
  EXPECT_TRUE(at::allclose(full_tensor(at::logsumexp(cut, 1)), at::logsumexp(x, 1), 1e-12, 1e-12, true));
  EXPECT_EQ(difference(full_tensor(at::_safe_softmax(cut, 1)), at::_safe_softmax(x, 1), 1e-12), "");
}

// --- cross entropy

struct Case {
  std::vector<int64_t> logits;
  std::string weights;
  double smoothing;
  int64_t ignored;
};

at::Tensor targets_for(const std::vector<int64_t>& logits) {
  auto shape = logits;
  shape.erase(shape.begin() + (shape.size() > 1));
  return (at::arange(c10::multiply_integers(shape)) * 3 % logits[logits.size() > 1]).reshape(shape);
}

void compare_cross_entropy(const Case& c, const DeviceMesh& mesh, const std::string& logits,
                           const std::string& target) {
  auto x = waves(c.logits), goal = targets_for(c.logits);
  auto classes = c.logits[c.logits.size() > 1];
  auto weight = c.weights.empty() ? at::Tensor() : (at::arange(classes, at::kDouble) + 1) / 3;
  for (int64_t reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    auto loss = [&](auto& t) {
      return at::cross_entropy_loss(t[0], t[1], t[2].defined() ? std::optional(t[2].detach()) : std::nullopt, reduction,
                                    c.ignored, c.smoothing);
    };
    EXPECT_EQ(compare(loss, {x, goal, weight}, mesh, {logits, target, c.weights}), "")
        << logits << " " << target << " " << c.weights << " smoothing " << c.smoothing << " ignored " << c.ignored
        << " reduction " << reduction << " of " << at::IntArrayRef(c.logits);
  }
}

TEST(CrossEntropy, WithCutClassesIsExact) {
  for (int64_t n : {2, 3, 4}) {
    auto world = simulate(n);
    for (double smoothing : {0.0, 0.1}) {
      for (int64_t ignored : {-100, 1}) {
        compare_cross_entropy({{4, 7}, "", smoothing, ignored}, line(n), "[S(1)]", "[R]");
        compare_cross_entropy({{4, 7}, "[R]", smoothing, ignored}, line(n), "[S(1)]", "[S(0)]");
        compare_cross_entropy({{4, 7}, "[S(0)]", smoothing, ignored}, line(n), "[S(1)]", "[R]");
        compare_cross_entropy({{4, 7}, "[R]", smoothing, ignored}, line(n), "[S(0)]", "[S(0)]");
        compare_cross_entropy({{2, 5, 3}, "[R]", smoothing, ignored}, line(n), "[S(1)]", "[R]");
        compare_cross_entropy({{2, 5, 3, 2}, "[R]", smoothing, ignored}, line(n), "[S(1)]", "[S(1)]");
        compare_cross_entropy({{5}, "[R]", smoothing, ignored}, line(n), "[S(0)]", "[R]");
      }
    }
  }
}

TEST(CrossEntropy, WithBatchAndClassesCutIsExact) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
  for (auto weights : {"", "[R, R]", "[R, S(0)]"}) {
    compare_cross_entropy({{5, 7}, weights, 0.0, 2}, mesh, "[S(0), S(1)]", "[S(0), R]");
    compare_cross_entropy({{5, 7}, weights, 0.2, 2}, mesh, "[S(0), S(1)]", "[R, R]");
    compare_cross_entropy({{5, 7}, weights, 0.0, 2}, mesh, "[S(1), S(1)]", "[R, R]");
    compare_cross_entropy({{3, 5, 2, 3}, weights, 0.0, 2}, mesh, "[S(2), S(1)]", "[S(1), R]");
  }
}

TEST(CrossEntropy, TakesProbabilitiesOfCutClasses) {
  auto world = simulate(3);
  auto target = at::softmax(waves({4, 7}, 0.3), 1), weight = (at::arange(7, at::kDouble) + 1) / 3;
  for (double smoothing : {0.0, 0.1}) {
    for (int64_t reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
      auto loss = [&](auto& t) {
        return at::cross_entropy_loss(t[0], t[1].detach(), t[2].detach(), reduction, -100, smoothing);
      };
      EXPECT_EQ(compare(loss, {waves({4, 7}), target, weight}, line(3), {"[S(1)]", "[S(1)]", "[R]"}), "");
      EXPECT_EQ(compare(loss, {waves({4, 7}), target, weight}, line(3), {"[S(1)]", "[R]", "[S(0)]"}), "");
    }
  }
}

TEST(CrossEntropy, GathersNoLogits) {
  auto world = simulate(4);
  auto x = lay_out(waves({6, 32}).to(at::kFloat), line(4), {Shard(1)}).requires_grad_();
  auto target = lay_out(at::arange(6) * 5, line(4), {Replicate()});
  CommDebugMode comms;
  auto loss = at::cross_entropy_loss(x, target);
  loss.backward(at::ones_like(loss));
  EXPECT_EQ(str(placements_of(x.grad())), "[S(1)]");
  EXPECT_EQ(comms.text(),
            "all_reduce(max) tp 36B\nall_reduce(sum) tp 36B\nall_reduce(sum) tp 6B\nall_reduce(sum) tp 36B\n");
  EXPECT_TRUE(comms.fallbacks().empty());
}

TEST(CrossEntropy, RefusesTargetsThatAreNoClass) {
  auto world = simulate(2);
  auto x = lay_out(waves({2, 4}), line(2), {Shard(1)});
  auto target = lay_out(at::tensor({1, 4}, at::kLong), line(2), {Replicate()});
  EXPECT_EQ(error_text<c10::IndexError>([&] { at::cross_entropy_loss(x, target); }), "Target 4 is out of bounds.");
}

}  // namespace
}  // namespace intarsia::ops_softmax_test
