// Lists of tensors that travel together. Included once by each test program; see in_every_world.

#include <numeric>

#include <ATen/ATen.h>

#include "intarsia/comm/packed.h"
#include "intarsia/debug/comm_debug_mode.h"
#include "tests/comm/lines.h"
#include "tests/support/error_text.h"

namespace intarsia {
namespace {

template <class Make>
ShardsList list_of(const Axis& axis, size_t length, Make make) {  // make(t, position)
  ShardsList list;
  for (size_t t = 0; t < length; ++t) list.push_back(per_slot(axis, [&](int64_t j) { return make(t, j); }));
  return list;
}

void expect_same(const Shards& packed, const Shards& single) {
  ASSERT_EQ(packed.size(), single.size());
  for (size_t slot = 0; slot < packed.size(); ++slot) {
    ASSERT_EQ(packed[slot].scalar_type(), single[slot].scalar_type());
    ASSERT_EQ(packed[slot].sizes(), single[slot].sizes());
    EXPECT_TRUE(at::equal(bytes_of(packed[slot]), bytes_of(single[slot]))) << "slot " << slot << ":\n"
                                                                           << packed[slot] << "\ninstead of\n"
                                                                           << single[slot];
  }
}

// As many collectives of this kind as there should be; on an axis of one rank nothing moves.
void expect_messages(const CommDebugMode& comms, const Axis& axis, const std::string& kind, int64_t count) {
  std::map<std::string, int64_t> expected;
  if (axis.size() > 1) expected[kind] = count;
  EXPECT_EQ(comms.get_comm_counts(), expected) << comms.text();
}

// Five dtypes, two of them twice; an odd number of bytes before wider numbers; empty, without dims and not contiguous.
at::Tensor mixed(size_t t, int64_t j) {
  at::manual_seed(10 * j + t);
  switch (t) {
    case 0: return at::randn({3}, at::kBFloat16).mul_(sign_of(j));
    case 1: return at::randn({2, 3}).mul_(sign_of(j));
    case 2: return at::randint(2, {}, at::kBool);
    case 3: return at::empty({0, 4}, at::kLong);
    case 4: return at::randn({5, 2}).mul_(sign_of(j)).t();
    case 5: return at::randint(100, {7}, at::kLong);
    default: return at::randn({1}, at::kComplexDouble);
  }
}
constexpr size_t kMixed = 7;
constexpr int64_t kMixedDtypes = 5;

TEST(Packed, AListIsReducedAsEachTensorByItself) {
  in_every_world([] {
    auto& axis = whole_axis();
    auto list = list_of(axis, kMixed, mixed);
    ShardsList single;
    for (auto& tensors : list) single.push_back(axis.all_reduce(tensors, ReduceOp::sum));
    CommDebugMode comms;
    auto packed = all_reduce(axis, list, ReduceOp::sum);
    expect_messages(comms, axis, "all_reduce(sum)", kMixedDtypes);
    ASSERT_EQ(packed.size(), kMixed);
    for (size_t t = 0; t < kMixed; ++t) {
      SCOPED_TRACE(t);
      if (sums_in_order() || t == 2 || t == 3 || t == 5) {
        expect_same(packed[t], single[t]);
      } else {
        for (auto& shard : packed[t]) EXPECT_TRUE(at::allclose(shard, single[t][0], 1e-2, 1e-2));
      }
    }
  });
}

TEST(Packed, AListMayBeReducedLater) {
  in_every_world([] {
    auto& axis = whole_axis();
    auto n = axis.size();
    auto value = [](size_t t, int64_t j) {
      return at::full({static_cast<int64_t>(t)}, sign_of(j), t % 2 ? at::kLong : at::kDouble);
    };
    auto list = list_of(axis, 4, value);
    Wait first, second, third;
    auto sums = all_reduce(axis, list, ReduceOp::sum, &first);
    auto most = all_reduce(axis, list, ReduceOp::max, &second);
    finish(second);
    finish(first);
    for (size_t t = 0; t < list.size(); ++t) {
      expect_each(axis, sums[t], at::full_like(value(t, 0), sum_of_signs(n)));
      expect_each(axis, most[t], value(t, n - 1));
    }
    auto means = all_reduce(axis, {list[2]}, ReduceOp::avg, &third);
    finish(third);
    expect_each(axis, means[0], at::full({2}, sum_of_signs(n), at::kDouble).div_(n));
  });
}

TEST(Packed, AListOfEveryDtypeIsGatheredInOneMessage) {
  in_every_world([] {
    auto& axis = whole_axis();
    auto n = axis.size();
    auto count = [](size_t t, int64_t j) { return static_cast<int64_t>(t + j) % 3; };
    auto list = list_of(axis, kDtypes.size(), [&](size_t t, int64_t j) {
      return at::full({count(t, j)}, j % 7 + 1, at::kLong).to(kDtypes[t]);
    });
    auto room = [&] {
      return list_of(axis, list.size(), [&](size_t t, int64_t) {
        int64_t total = 0;
        for (int64_t j = 0; j < n; ++j) total += count(t, j);
        return at::empty({total}, kDtypes[t]);
      });
    };
    CountsList counts;
    for (size_t t = 0; t < list.size(); ++t) {
      counts.push_back(counts_per_slot(axis, [&](int64_t, int64_t j) { return count(t, j); }));
    }
    auto single = room(), now = room(), later = room();
    for (size_t t = 0; t < list.size(); ++t) axis.all_gather(list[t], single[t], counts[t]);
    CommDebugMode comms;
    Wait wait;
    all_gather(axis, list, later, counts, &wait);
    all_gather(axis, list, now, counts);
    finish(wait);
    expect_messages(comms, axis, "all_gather", 2);
    for (size_t t = 0; t < list.size(); ++t) {
      SCOPED_TRACE(c10::str(kDtypes[t]));
      expect_same(now[t], single[t]);
      expect_same(later[t], single[t]);
    }
  });
}

TEST(Packed, AListIsReducedAndScatteredAsEachTensorByItself) {
  in_every_world([] {
    auto& axis = whole_axis();
    auto n = axis.size();
    const std::vector<at::ScalarType> types = {at::kFloat, at::kBFloat16, at::kFloat, at::kDouble, at::kFloat};
    auto count = [](size_t t, int64_t j) { return t == 2 ? 0 : static_cast<int64_t>(t + j) % 4; };
    auto list = list_of(axis, types.size(), [&](size_t t, int64_t j) {
      int64_t total = 0;
      for (int64_t k = 0; k < n; ++k) total += count(t, k);
      at::manual_seed(10 * j + t);
      return at::randn({total}, types[t]).mul_(sign_of(j));
    });
    CountsList counts;
    for (size_t t = 0; t < list.size(); ++t) {
      counts.push_back(counts_per_slot(axis, [&](int64_t, int64_t j) { return count(t, j); }));
    }
    for (auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max}) {
      ShardsList single;
      for (size_t t = 0; t < list.size(); ++t) single.push_back(axis.reduce_scatter(list[t], counts[t], op));
      CommDebugMode comms;
      Wait wait;
      auto later = reduce_scatter(axis, list, counts, op, &wait);
      auto now = reduce_scatter(axis, list, counts, op);
      finish(wait);
      expect_messages(comms, axis, "reduce_scatter(" + str(op) + ")", 2 * 3);
      for (size_t t = 0; t < list.size(); ++t) {
        SCOPED_TRACE(c10::str(str(op), " of tensor ", t));
        expect_same(now[t], single[t]);
        expect_same(later[t], single[t]);
      }
    }
  });
}

TEST(Packed, AListIsBroadcastFromEverySourceInOneMessage) {
  in_every_world([] {
    auto& axis = whole_axis();
    for (int64_t source = 0; source < axis.size(); ++source) {
      auto value = [](size_t t, int64_t j) { return mixed(t, j).contiguous(); };
      auto now = list_of(axis, kMixed, value), later = list_of(axis, kMixed, value);
      CommDebugMode comms;
      Wait wait;
      broadcast(axis, later, source, &wait);
      broadcast(axis, now, source);
      finish(wait);
      expect_messages(comms, axis, "broadcast", 2);
      for (size_t t = 0; t < kMixed; ++t) {
        expect_each(axis, now[t], value(t, source));
        expect_each(axis, later[t], value(t, source));
      }
    }
  });
}

TEST(Packed, AnEmptyListMovesNothing) {
  in_every_world([] {
    auto& axis = whole_axis();
    CommDebugMode comms;
    EXPECT_TRUE(all_reduce(axis, {}, ReduceOp::sum).empty());
    EXPECT_TRUE(reduce_scatter(axis, {}, {}, ReduceOp::sum).empty());
    all_gather(axis, {}, {}, {});
    broadcast(axis, {}, 0);
    EXPECT_EQ(comms.text(), "");
  });
}

TEST(Packed, RanksOutsideAMeshTakeNoPart) {
  in_every_world([] {
    if (current_world().size() < 3) return;
    auto& axis = Axis::of(DeviceMesh(at::kCPU, {2}, {2, 0}, {"pair"}), 0);
    auto list = list_of(axis, 2, [](size_t, int64_t j) { return at::full({1}, double(sign_of(j))); });
    auto sums = all_reduce(axis, list, ReduceOp::sum);
    ASSERT_EQ(sums.size(), 2u);
    for (auto& sum : sums[1]) EXPECT_EQ(sum.item<double>(), 11);
    broadcast(axis, list, 1);
    for (auto& value : list[1]) EXPECT_EQ(value.item<double>(), 10);
  });
}

TEST(Packed, ResultsOfOneMessageAreWrittenToOneByOne) {
  in_every_world([] {
    auto& axis = whole_axis();
    auto list = list_of(axis, 2, [](size_t, int64_t j) { return at::full({2}, sign_of(j), at::kLong); });
    auto sums = all_reduce(axis, list, ReduceOp::sum);
    auto version = axis.slot_count() ? sums[1][0]._version() : 0;
    for (auto& sum : sums[0]) sum.zero_();
    expect_each(axis, sums[1], at::full({2}, sum_of_signs(axis.size()), at::kLong));
    EXPECT_EQ(sums[1][0]._version(), version) << "autograd would take it for changed";
  });
}

TEST(Packed, AnOpWithoutAMeaningForOneDtypeIsAnErrorBeforeAnythingMoves) {
  in_every_world([] {
    auto& axis = whole_axis();
    auto list = list_of(axis, 2, [](size_t t, int64_t) { return at::ones({2}, t ? at::kLong : at::kFloat); });
    CommDebugMode comms;
    EXPECT_EQ(error_text<c10::ValueError>([&] { all_reduce(axis, list, ReduceOp::avg); }),
              "[all_reduce] the average of Long tensors is not whole. Use Partial(sum).");
    CountsList counts(2, counts_per_slot(axis, [&](int64_t, int64_t j) { return j ? 0 : 2; }));
    EXPECT_EQ(error_text<c10::TypeError>([&] { reduce_scatter(axis, list, counts, ReduceOp::bor); }),
              "[reduce_scatter] bor is for integers and bool, not for Float. Use sum, product, min or max.");
    EXPECT_EQ(comms.text(), "");
  });
}

}  // namespace
}  // namespace intarsia
