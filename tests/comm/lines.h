#pragma once
// Data along the line of all ranks, for tests of engines and of what stands on them.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <functional>
#include <vector>

#include <ATen/ATen.h>

#include "intarsia/comm/axis.h"
#include "intarsia/comm/reduce.h"
#include "tests/support/worlds.h"

namespace intarsia {

inline const std::vector<at::ScalarType> kDtypes = {
    at::kBool,   at::kByte, at::kChar,     at::kShort, at::kInt,    at::kLong,         at::kUInt16,       at::kUInt32,
    at::kUInt64, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble};
inline const std::vector<ReduceOp> kOps = {ReduceOp::sum,  ReduceOp::product, ReduceOp::min, ReduceOp::max,
                                           ReduceOp::band, ReduceOp::bor,     ReduceOp::bxor};

inline bool has_meaning(at::ScalarType type, ReduceOp op) {
  bool bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
  if (at::isFloatingType(type)) return !bitwise;
  if (at::isComplexType(type)) return op == ReduceOp::sum || op == ReduceOp::product;
  return true;
}

inline const Axis& whole_axis() { return Axis::of(init_device_mesh(at::kCPU, {current_world().size()}, {"x"}), 0); }
inline const Engine& engine() { return engine_of(current_world()); }

template <class Make>
Shards per_slot(const Axis& axis, Make make) {
  Shards shards;
  for (size_t slot = 0; slot < axis.slot_count(); ++slot) shards.push_back(make(axis.position(slot)));
  return shards;
}

template <class Count>
Counts counts_per_slot(const Axis& axis, Count count) {
  Counts counts;
  for (size_t slot = 0; slot < axis.slot_count(); ++slot) {
    auto& row = counts.emplace_back();
    for (int64_t j = 0; j < axis.size(); ++j) row.push_back(count(axis.position(slot), j));
  }
  return counts;
}

inline void finish(const Wait& wait) {
  if (wait) wait();
}

inline at::Tensor bytes_of(const at::Tensor& t) { return t.contiguous().view(-1).view(at::kByte); }

inline at::Tensor beginning(const at::Tensor& t) { return t.reshape(-1).slice(0, 0, 8); }

// Equal bit for bit in every slot: at::equal does not know every dtype, and here a NaN equals itself.
inline void expect_each(const Axis& axis, const Shards& shards, const at::Tensor& expected) {
  for (size_t slot = 0; slot < axis.slot_count(); ++slot) {
    ASSERT_EQ(shards[slot].scalar_type(), expected.scalar_type());
    ASSERT_EQ(shards[slot].sizes(), expected.sizes());
    EXPECT_TRUE(at::equal(bytes_of(shards[slot]), bytes_of(expected))) << "at position " << axis.position(slot) << ":\n"
                                                                       << beginning(shards[slot]) << "\ninstead of\n"
                                                                       << beginning(expected);
  }
}

// What the line's values reduce to, computed in the widest type of the kind.
inline at::Tensor expected_reduction(const Axis& axis, at::ScalarType type, ReduceOp op,
                                     const std::function<at::Tensor(int64_t)>& value) {
  auto wide = type == at::kBool          ? at::kBool
              : at::isComplexType(type)  ? at::kComplexDouble
              : at::isFloatingType(type) ? at::kDouble
                                         : at::kLong;
  auto result = value(0).to(wide).clone();
  for (int64_t j = 1; j < axis.size(); ++j) reduce(result, result, value(j).to(wide), op);
  return result.to(type);
}

// A backend's own collectives have an order of their own.
inline bool sums_in_order() {
  auto* direct = getenv("INTARSIA_DIRECT");
  return current_world().simulated() || !direct || std::string(direct) != "0";
}

}  // namespace intarsia
