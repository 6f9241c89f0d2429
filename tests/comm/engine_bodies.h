// What every engine must do. Included once by each test program; see in_every_world.

#include <numeric>

#include <ATen/ATen.h>

#include "tests/comm/lines.h"
#include "tests/support/error_text.h"

namespace intarsia {
namespace {

TEST(Engine, ReducesEveryDtypeByEveryOpThatHasAMeaningForIt) {
  in_every_world([] {
    auto& axis = whole_axis();
    for (auto type : kDtypes) {
      for (auto op : kOps) {
        if (!has_meaning(type, op)) continue;
        SCOPED_TRACE(c10::str(str(op), " of ", type));
        auto value = [&](int64_t j) {
          auto last = j + 1 == axis.size();
          return at::tensor({op == ReduceOp::product ? 1 + j % 2 : j + 1, int64_t{0}, int64_t{last}, int64_t{2}})
              .to(type);
        };
        auto mine = per_slot(axis, value);
        for (bool later : {false, true}) {
          auto result = per_slot(axis, [&](int64_t) { return at::empty_like(value(0)); });
          finish(engine().all_reduce(axis.line(), mine, result, op, later));
          expect_each(axis, result, expected_reduction(axis, type, op, value));
        }
        for (size_t slot = 0; slot < mine.size(); ++slot) {
          EXPECT_TRUE(at::equal(bytes_of(mine[slot]), bytes_of(value(axis.position(slot))))) << "the input changed";
        }
      }
    }
  });
}

TEST(Engine, UnsignedNumbersCompareByAllTheirBits) {
  in_every_world([] {
    auto& axis = whole_axis();
    for (auto type : {at::kByte, at::kUInt16, at::kUInt32, at::kUInt64}) {
      auto top = static_cast<int64_t>(uint64_t{1} << (8 * at::elementSize(type) - 1));
      auto value = [&](int64_t j) {  // position 0 holds the number with the top bit, the others small ones
        return at::full({3}, j ? j : top, at::kLong).to(type);
      };
      auto result = per_slot(axis, [&](int64_t) { return at::empty({3}, type); });
      finish(engine().all_reduce(axis.line(), per_slot(axis, value), result, ReduceOp::max, false));
      expect_each(axis, result, value(0));
      finish(engine().all_reduce(axis.line(), per_slot(axis, value), result, ReduceOp::min, false));
      expect_each(axis, result, value(axis.size() > 1 ? 1 : 0));
    }
  });
}

TEST(Engine, AMinOrMaxKeepsANaNWhoeverHoldsIt) {
  in_every_world([] {
    auto& axis = whole_axis();
    for (int64_t holder = 0; holder < axis.size(); ++holder) {
      auto mine = per_slot(axis, [&](int64_t j) { return at::full({2}, j == holder ? NAN : double(j)); });
      for (auto op : {ReduceOp::min, ReduceOp::max}) {
        for (bool later : {false, true}) {
          auto result = per_slot(axis, [](int64_t) { return at::empty({2}); });
          finish(engine().all_reduce(axis.line(), mine, result, op, later));
          for (auto& r : result) EXPECT_TRUE(r.isnan().all().item<bool>()) << str(op) << " holder " << holder;
        }
      }
    }
  });
}

// Below and above the sizes at which the real engine changes its ways; all parts uneven, some empty.
const std::vector<int64_t> kSizes = {0, 1, 2, 5, 1000, 100003, 1500001};

TEST(Engine, AddsInTheOrderOfTheLineWhateverTheSize) {
  in_every_world([] {
    auto& axis = whole_axis();
    for (auto size : kSizes) {
      if (current_world().simulated() && size > 100003) continue;  // one way for all sizes
      SCOPED_TRACE(size);
      auto value = [&](int64_t j) {  // sums of these depend on the order
        at::manual_seed(j);
        return at::randn({size}).mul_(sign_of(j));
      };
      auto expected = value(0);
      for (int64_t j = 1; j < axis.size(); ++j) expected.add_(value(j));
      auto result = per_slot(axis, [&](int64_t) { return at::empty({size}); });
      finish(engine().all_reduce(axis.line(), per_slot(axis, value), result, ReduceOp::sum, false));
      if (sums_in_order()) {
        expect_each(axis, result, expected);
      } else {
        for (auto& r : result) EXPECT_TRUE(at::allclose(r, expected, 1e-4, 1e-2));
      }
    }
  });
}

TEST(Engine, GathersUnevenAndEmptyPartsOfEveryDtype) {
  in_every_world([] {
    auto& axis = whole_axis();
    auto count = [](int64_t, int64_t j) { return j; };  // position 0 has nothing
    for (auto type : kDtypes) {
      SCOPED_TRACE(c10::str(type));
      auto value = [&](int64_t j) { return at::full({j}, j % 7 + 1, at::kLong).to(type); };
      std::vector<at::Tensor> parts;
      for (int64_t j = 0; j < axis.size(); ++j) parts.push_back(value(j));
      auto expected = at::cat(parts);
      auto all = per_slot(axis, [&](int64_t) { return at::empty({expected.numel()}, type); });
      finish(engine().all_gather(axis.line(), per_slot(axis, value), all, counts_per_slot(axis, count)));
      expect_each(axis, all, expected);
    }
  });
}

TEST(Engine, GathersEvenPartsInTheOrderOfTheLine) {
  in_every_world([] {
    auto& axis = whole_axis();
    for (int64_t count : {0, 1, 3, 70000}) {
      auto value = [&](int64_t j) { return at::full({count}, double(sign_of(j))); };
      std::vector<at::Tensor> parts;
      for (int64_t j = 0; j < axis.size(); ++j) parts.push_back(value(j));
      auto all = per_slot(axis, [&](int64_t) { return at::empty({count * axis.size()}); });
      auto counts = counts_per_slot(axis, [&](int64_t, int64_t) { return count; });
      finish(engine().all_gather(axis.line(), per_slot(axis, value), all, counts));
      expect_each(axis, all, at::cat(parts));
    }
  });
}

TEST(Engine, DealsUnevenAndEmptyPartsOfEveryDtypeToAll) {
  in_every_world([] {
    auto& axis = whole_axis();
    auto count = [](int64_t from, int64_t to) { return (from + 2 * to) % 3; };
    auto part = [&](int64_t from, int64_t to, at::ScalarType type) {
      return at::full({count(from, to)}, (10 * from + to) % 100, at::kLong).to(type);
    };
    auto n = axis.size();
    for (auto type : kDtypes) {
      SCOPED_TRACE(c10::str(type));
      auto joined = [&](auto make) {
        std::vector<at::Tensor> parts;
        for (int64_t j = 0; j < n; ++j) parts.push_back(make(j));
        return at::cat(parts);
      };
      auto send = per_slot(axis, [&](int64_t me) { return joined([&](int64_t j) { return part(me, j, type); }); });
      auto expected = per_slot(axis, [&](int64_t me) { return joined([&](int64_t j) { return part(j, me, type); }); });
      auto receive = per_slot(
          axis, [&](int64_t me) { return at::empty_like(joined([&](int64_t j) { return part(j, me, type); })); });
      finish(engine().all_to_all(axis.line(), send, counts_per_slot(axis, count), receive,
                                 counts_per_slot(axis, [&](int64_t me, int64_t j) { return count(j, me); })));
      for (size_t slot = 0; slot < send.size(); ++slot) {
        EXPECT_TRUE(at::equal(bytes_of(receive[slot]), bytes_of(expected[slot]))) << receive[slot];
      }
    }
  });
}

TEST(Engine, ReducesAndScattersEveryDtypeByEveryOpThatHasAMeaningForIt) {
  in_every_world([] {
    auto& axis = whole_axis();
    auto counts = counts_per_slot(axis, [](int64_t, int64_t j) { return j % 3; });  // position 0 gets nothing
    auto length = std::accumulate(counts[0].begin(), counts[0].end(), int64_t{0});
    for (auto type : kDtypes) {
      for (auto op : kOps) {
        if (!has_meaning(type, op)) continue;
        SCOPED_TRACE(c10::str(str(op), " of ", type));
        auto value = [&](int64_t j) {
          return at::arange(length).add_(j).remainder_(op == ReduceOp::product ? 3 : 7).to(type);
        };
        auto result = per_slot(axis, [&](int64_t j) { return at::empty({j % 3}, type); });
        finish(engine().reduce_scatter(axis.line(), per_slot(axis, value), counts, result, op));
        auto whole = expected_reduction(axis, type, op, value);
        for (size_t slot = 0; slot < result.size(); ++slot) {
          auto& count = counts[slot];
          auto begin = std::accumulate(count.begin(), count.begin() + axis.position(slot), int64_t{0});
          auto part = whole.narrow(0, begin, result[slot].numel());
          EXPECT_TRUE(at::equal(bytes_of(result[slot]), bytes_of(part))) << result[slot] << "\ninstead of\n" << part;
        }
      }
    }
  });
}

// Unlike all_reduce, on a backend's own collectives too: they carry the parts, and we add.
TEST(Engine, ReducesAndScattersInTheOrderOfTheLine) {
  in_every_world([] {
    auto& axis = whole_axis();
    auto n = axis.size();
    for (int64_t part : {1, 1000, 70001}) {
      auto value = [&](int64_t j) {  // sums of these depend on the order
        at::manual_seed(j);
        return at::randn({part * n}).mul_(sign_of(j));
      };
      auto expected = value(0);
      for (int64_t j = 1; j < n; ++j) expected.add_(value(j));
      auto result = per_slot(axis, [&](int64_t) { return at::empty({part}); });
      auto counts = counts_per_slot(axis, [&](int64_t, int64_t) { return part; });
      finish(engine().reduce_scatter(axis.line(), per_slot(axis, value), counts, result, ReduceOp::sum));
      for (size_t slot = 0; slot < result.size(); ++slot) {
        EXPECT_TRUE(at::equal(result[slot], expected.narrow(0, part * axis.position(slot), part)));
      }
    }
  });
}

TEST(Engine, BroadcastsFromEverySourceEveryDtype) {
  in_every_world([] {
    auto& axis = whole_axis();
    for (auto type : kDtypes) {
      for (int64_t source = 0; source < axis.size(); ++source) {
        auto value = [&](int64_t j) { return at::full({2, 3}, j % 5, at::kLong).to(type); };
        auto buffers = per_slot(axis, value);
        finish(engine().broadcast(axis.line(), buffers, source));
        expect_each(axis, buffers, value(source));
      }
    }
    auto nothing = per_slot(axis, [](int64_t) { return at::empty({0}); });
    finish(engine().broadcast(axis.line(), nothing, 0));
    engine().barrier();
  });
}

TEST(Engine, CollectivesUnderWayMayBeFinishedInAnyOrder) {
  in_every_world([] {
    auto& axis = whole_axis();
    auto n = axis.size();
    auto mine = per_slot(axis, [](int64_t j) { return at::full({4}, sign_of(j), at::kLong); });
    auto sum = per_slot(axis, [](int64_t) { return at::empty({4}, at::kLong); });
    auto all = per_slot(axis, [&](int64_t) { return at::empty({4 * n}, at::kLong); });
    auto unseen = per_slot(axis, [&](int64_t) { return at::empty({4 * n}, at::kLong); });
    auto counts = counts_per_slot(axis, [](int64_t, int64_t) { return 4; });
    auto first = engine().all_reduce(axis.line(), mine, sum, ReduceOp::sum, true);
    auto second = engine().all_gather(axis.line(), mine, all, counts);
    {
      auto dropped = engine().all_gather(axis.line(), mine, unseen, counts);
    }  // nobody waits for it
    bool early = axis.position(0) % 2 == 0;
    finish(early ? first : second);
    finish(early ? second : first);
    expect_each(axis, sum, at::full({4}, sum_of_signs(n), at::kLong));
    for (auto& a : all) EXPECT_EQ(a.sum().item<int64_t>(), 4 * sum_of_signs(n));
  });
}

// Rows and columns of a grid, and a line whose order is not that of the ranks.
TEST(Engine, LinesOfAGridTalkAmongThemselves) {
  in_every_world([] {
    auto n = current_world().size();
    if (n % 2) return;
    DeviceMesh mesh(at::kCPU, {2, n / 2},
                    [&] {
                      std::vector<int64_t> ranks(n);
                      std::iota(ranks.rbegin(), ranks.rend(), 0);
                      return ranks;
                    }(),
                    {"dp", "tp"});
    for (int64_t which = 0; which < 2; ++which) {
      auto& axis = Axis::of(mesh, which);
      Shards mine;
      std::vector<double> expected;
      for (auto& slot : mesh.slots()) {
        mine.push_back(at::full({3}, double(sign_of(slot.rank))));
        double sum = 0;
        for (auto rank : mesh.line(slot, {which})) sum += sign_of(rank);
        expected.push_back(sum);
      }
      auto result = axis.all_reduce(mine, ReduceOp::sum);
      for (size_t slot = 0; slot < result.size(); ++slot) {
        EXPECT_TRUE(result[slot].eq(expected[slot]).all().item<bool>()) << result[slot];
      }
    }
  });
}

TEST(Engine, RanksOutsideAMeshTakeNoPart) {
  in_every_world([] {
    if (current_world().size() < 3) return;
    auto& axis = Axis::of(DeviceMesh(at::kCPU, {2}, {2, 0}, {"pair"}), 0);
    auto mine = per_slot(axis, [](int64_t j) { return at::full({1}, double(sign_of(j))); });
    for (auto& r : axis.all_reduce(mine, ReduceOp::sum)) EXPECT_EQ(r.item<double>(), 11);
  });
}

TEST(Axis, ReducesAndScattersUnevenPartsNowAndLater) {
  in_every_world([] {
    auto& axis = whole_axis();
    auto n = axis.size();
    auto counts = counts_per_slot(axis, [](int64_t, int64_t j) { return (j + 1) % 3; });
    auto length = std::accumulate(counts[0].begin(), counts[0].end(), int64_t{0});
    for (auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max}) {
      auto send = per_slot(axis, [&](int64_t j) { return at::full({length}, double(sign_of(j))); });
      Wait wait;
      auto later = axis.reduce_scatter(send, counts, op, &wait);
      auto now = axis.reduce_scatter(send, counts, op);
      finish(wait);
      double sum = sum_of_signs(n);
      double expected = op == ReduceOp::max ? sign_of(n - 1) : op == ReduceOp::avg ? sum / n : sum;
      for (auto* parts : {&later, &now}) {
        for (size_t slot = 0; slot < parts->size(); ++slot) {
          auto& part = (*parts)[slot];
          EXPECT_EQ(part.numel(), (axis.position(slot) + 1) % 3);
          EXPECT_TRUE(at::allclose(part, at::full_like(part, expected))) << part;
        }
      }
    }
  });
}

TEST(Axis, BroadcastsMayBeFinishedInAnyOrder) {
  in_every_world([] {
    auto& axis = whole_axis();
    auto value = [](int64_t j) { return at::full({3}, sign_of(j), at::kLong); };
    auto first = per_slot(axis, value), last = per_slot(axis, value);
    Wait waits[2];
    axis.broadcast(first, 0, &waits[0]);
    axis.broadcast(last, axis.size() - 1, &waits[1]);
    finish(waits[1]);
    finish(waits[0]);
    expect_each(axis, first, value(0));
    expect_each(axis, last, value(axis.size() - 1));
  });
}

TEST(Axis, AllReduceLeavesItsInputAndTakesAnyStrides) {
  in_every_world([] {
    auto& axis = whole_axis();
    auto mine = per_slot(axis, [](int64_t j) { return at::full({2, 3}, double(sign_of(j))).t(); });
    for (auto op : {ReduceOp::sum, ReduceOp::avg}) {
      Wait wait;
      auto later = axis.all_reduce(mine, op, &wait);
      auto now = axis.all_reduce(mine, op);
      finish(wait);
      auto expected = sum_of_signs(axis.size()) / (op == ReduceOp::avg ? double(axis.size()) : 1.0);
      for (auto* result : {&later, &now}) {
        for (auto& r : *result) EXPECT_TRUE(at::allclose(r, at::full({3, 2}, expected))) << r;
      }
      for (size_t slot = 0; slot < mine.size(); ++slot) {
        EXPECT_TRUE(mine[slot].eq(sign_of(axis.position(slot))).all().item<bool>());
      }
    }
  });
}

TEST(Axis, AnOpWithoutAMeaningForTheDtypeIsAnErrorBeforeAnythingMoves) {
  in_every_world([] {
    auto& axis = whole_axis();
    auto reduce_all = [&](at::ScalarType type, ReduceOp op) {
      axis.all_reduce(per_slot(axis, [&](int64_t) { return at::ones({2}, type); }), op);
    };
    EXPECT_EQ(error_text<c10::TypeError>([&] { reduce_all(at::kComplexFloat, ReduceOp::max); }),
              "[all_reduce] ComplexFloat tensors have no max: complex numbers have no order. Reduce their "
              "absolute values.");
    EXPECT_EQ(error_text<c10::TypeError>([&] { reduce_all(at::kFloat, ReduceOp::band); }),
              "[all_reduce] band is for integers and bool, not for Float. Use sum, product, min or max.");
    EXPECT_EQ(error_text<c10::ValueError>([&] { reduce_all(at::kLong, ReduceOp::avg); }),
              "[all_reduce] the average of Long tensors is not whole. Use Partial(sum).");
    auto counts = counts_per_slot(axis, [](int64_t, int64_t) { return 1; });
    auto ones = per_slot(axis, [&](int64_t) { return at::ones({axis.size()}, at::kLong); });
    EXPECT_EQ(error_text<c10::ValueError>([&] { axis.reduce_scatter(ones, counts, ReduceOp::avg); }),
              "[reduce_scatter] the average of Long tensors is not whole. Use Partial(sum).");
  });
}

}  // namespace
}  // namespace intarsia
