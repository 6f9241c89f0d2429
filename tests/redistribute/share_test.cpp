#include "intarsia/redistribute/share.h"
#include "intarsia/comm/reduce.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "intarsia/comm/engine.h"
#include "tests/support/world.h"

namespace intarsia::redistribute_share_test {
namespace {

const std::vector<ReduceOp> kOps = {ReduceOp::sum, ReduceOp::avg,  ReduceOp::product, ReduceOp::min,
                                    ReduceOp::max, ReduceOp::band, ReduceOp::bor,     ReduceOp::bxor};

bool is_bitwise(ReduceOp op) { return op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor; }

// The lowest and the highest number of a dtype, and some between them.
at::Tensor numbers(at::ScalarType dtype) {
  if (dtype == at::kBool) return at::arange(2).to(at::kBool);
  if (at::isFloatingType(dtype)) return at::tensor({-INFINITY, -2.5, 0., 1., 3., INFINITY}).to(dtype);
  if (at::isComplexType(dtype)) return at::complex(at::arange(-2., 3.), at::arange(0., 5.)).to(dtype);
  auto bits = 8 * c10::elementSize(dtype);
  auto highest = std::numeric_limits<int64_t>::max() >> (64 - bits);
  auto values = at::tensor({-highest - 1, int64_t{-5}, int64_t{0}, int64_t{7}, highest});
  return values.to(dtype);  // -5 is close to the highest of an unsigned one
}

TEST(NeutralElement, LeavesEveryNumberAsItIs) {
  for (auto dtype : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kUInt16, at::kUInt32,
                     at::kUInt64, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat}) {
    for (auto op : kOps) {
      bool inexact = at::isFloatingType(dtype) || at::isComplexType(dtype);
      bool orders = op == ReduceOp::min || op == ReduceOp::max;
      if (op == ReduceOp::avg || (is_bitwise(op) && inexact) || (orders && at::isComplexType(dtype))) continue;
      if (c10::isBarebonesUnsignedType(dtype) && op == ReduceOp::product) continue;  // ATen has none
      auto x = numbers(dtype), out = at::empty_like(x), neutral = at::empty_like(x).fill_(neutral_element(op, dtype));
      reduce(out, neutral, x, op);
      EXPECT_TRUE(at::equal(out, x)) << str(op) << " of " << dtype << ": " << out << " is not " << x;
    }
  }
}

TEST(NeutralElement, OfAnAverageThereIsNone) { EXPECT_THROW(neutral_element(ReduceOp::avg, at::kFloat), c10::Error); }

TEST(ShareOf, TheSharesReduceToTheValue) {
  for (auto op : kOps) {
    auto value = is_bitwise(op) ? at::arange(6).reshape({2, 3}) : at::arange(6.).reshape({2, 3});
    auto result = share_of(value, op, 0).clone();
    for (int64_t position = 1; position < 4; ++position) {
      reduce(result, result, share_of(value, op, position), op == ReduceOp::avg ? ReduceOp::sum : op);
    }
    if (op == ReduceOp::avg) result.div_(4);
    EXPECT_TRUE(at::equal(result, value)) << str(op);
  }
}

TEST(ShareOf, ANumbersShareIsThatOfATensor) {
  for_each_world({4}, [](int64_t) {
    auto mesh = init_device_mesh(at::kCPU, {2, 2});
    for (auto* text : {"[R, R]", "[P(sum), P(sum)]", "[P(sum), P(avg)]", "[S(0), P(product)]",
                       "[P(product), P(product)]", "[P(max), R]", "[P(sum), S(0)]"}) {
      auto* layout = Layout::get(mesh, parse_placements(text));
      for (auto& slot : mesh.slots()) {
        auto number = share_of(at::Scalar(7.5), *layout, slot.coordinate);
        auto tensor = shard_of(at::full({2}, 7.5), *layout, slot.coordinate);
        EXPECT_EQ(number.toDouble(), tensor[0].item<double>()) << text << " on rank " << slot.rank;
        EXPECT_EQ(holds_value(*layout, slot.coordinate), number.toDouble() == 7.5) << text << " on rank " << slot.rank;
      }
    }
  });
}

TEST(PartOf, AStridedPartIsJoinedOfItsBlocks) {
  auto columns = at::arange(8).reshape({1, 8});
  EXPECT_TRUE(at::equal(part_of(columns, StridedShard(1, 2), 2, 1), at::tensor({2, 3, 6, 7}).reshape({1, 4})));
  EXPECT_TRUE(part_of(columns, StridedShard(1, int64_t{1} << 60), 2, 0).is_alias_of(columns));  // all of it
  EXPECT_EQ(part_of(columns, StridedShard(1, int64_t{1} << 60), 2, 1).size(1), 0);
}

}  // namespace
}  // namespace intarsia::redistribute_share_test
