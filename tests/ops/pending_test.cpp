// Reductions that are pending on two axes at once, of both operands, in every combination.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/core/pending.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia::ops_pending_test {
namespace {

struct Binary {
  const char* name;
  at::Tensor (*call)(const at::Tensor&, const at::Tensor&);
};

const std::vector<Binary> kOps = {
    {"add", [](auto& a, auto& b) { return a + b; }},
    {"sub", [](auto& a, auto& b) { return a - b; }},
    {"mul", [](auto& a, auto& b) { return a * b; }},
    {"div", [](auto& a, auto& b) { return a / b; }},
    {"maximum", [](auto& a, auto& b) { return at::maximum(a, b); }},
    {"minimum", [](auto& a, auto& b) { return at::minimum(a, b); }},
    {"where", [](auto& a, auto& b) { return at::where(a > b, a, b); }},
    {"mm", [](auto& a, auto& b) { return at::mm(a, b); }},
    {"cat", [](auto& a, auto& b) { return at::cat({a, b}, 1); }},
    {"lerp", [](auto& a, auto& b) { return at::lerp(a, b, 0.25); }},
};

std::vector<Placements> layouts_over_two_axes() {
  Placements kinds = {Replicate(), Shard(0)};
  for (auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::max, ReduceOp::min})
    kinds.push_back(Partial(op));
  std::vector<Placements> all;
  for (auto& first : kinds) {
    for (auto& second : kinds) {
      if (have_one_value({first, second})) all.push_back({first, second});
    }
  }
  return all;
}

TEST(Pending, OnTwoAxesGivesTheValuesOfThePlainOp) {
  for_each_world({6}, [](int64_t) {
    auto mesh = init_device_mesh(at::kCPU, {3, 2});
    auto a = at::arange(1, 10, at::kDouble).view({3, 3}) / 4, b = a.flip({0, 1}) + 0.125;
    for (auto& op : kOps) {
      auto expected = op.call(a, b);
      for (auto& first : layouts_over_two_axes()) {
        for (auto& second : layouts_over_two_axes()) {
          auto result = op.call(lay_out(a, mesh, first), lay_out(b, mesh, second));
          EXPECT_TRUE(have_one_value(placements_of(result)));
          EXPECT_EQ(difference(full_tensor(result), expected, 1e-10), "")
              << op.name << " " << str(first) << " " << str(second);
        }
      }
    }
  });
}

}  // namespace
}  // namespace intarsia::ops_pending_test
