#include "intarsia/redistribute/run/exchange.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "tests/support/world.h"

namespace intarsia::redistribute_exchange_test {
namespace {

at::Tensor named(int64_t from, int64_t to, int64_t number) {
  return at::full({number + 1, 2}, 100 * from + 10 * to + number, at::kLong);
}

// Member j gets j pieces from everybody, of one row, of two rows, ...
TEST(Exchange, PiecesArriveInOrderAndInTheirShapes) {
  for_each_world({1, 2, 3, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto& axis = Axis::of(mesh, 0);
    std::vector<Trade> trades;
    for (size_t slot = 0; slot < axis.slot_count(); ++slot) {
      auto me = axis.position(slot);
      auto& trade = trades.emplace_back(axis, at::kLong);
      for (int64_t member = 0; member < n; ++member) {
        trade.give(member, {});
        for (int64_t k = 0; k < member; ++k) trade.give(member, named(me, member, k).t().contiguous().t());
        for (int64_t k = 0; k < me; ++k) trade.get(member, {k + 1, 2});
      }
    }
    auto exchanged = exchange(axis, std::move(trades));
    EXPECT_FALSE(exchanged.wait);
    for (size_t slot = 0; slot < axis.slot_count(); ++slot) {
      auto me = axis.position(slot);
      auto pieces = exchanged.pieces(slot);
      ASSERT_EQ(pieces.size(), n * me);
      for (int64_t i = 0; i < n * me; ++i) {
        EXPECT_TRUE(at::equal(pieces[i], named(i / me, me, i % me))) << me << " got " << pieces[i];
        EXPECT_TRUE(pieces[i].is_alias_of(exchanged.received[slot]));
      }
    }
  });
}

// Every member gives the next one 3 floats, and an empty piece.
TEST(Exchange, MayBeFinishedLaterAndIsTracedByItsName) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n}, {"tp"});
    auto& axis = Axis::of(mesh, 0);
    std::vector<Trade> trades;
    for (size_t slot = 0; slot < axis.slot_count(); ++slot) {
      auto me = axis.position(slot), next = (me + 1) % n, last = (me + n - 1) % n;
      auto& trade = trades.emplace_back(axis, at::kFloat);
      trade.give(next, at::full({3}, me, at::kFloat));
      trade.give(next, at::empty({0, 7}));
      trade.get(last, {3, 1});
      trade.get(last, {0, 7});
    }
    CommDebugMode comms;
    auto exchanged = exchange(axis, std::move(trades), true, Collective::halo);
    EXPECT_EQ(comms.text(), "halo tp 12B\n");
    auto pieces = exchanged.pieces(0);
    if (exchanged.wait) exchanged.wait();
    EXPECT_TRUE(at::equal(pieces[0], at::full({3, 1}, (axis.position(0) + n - 1) % n, at::kFloat)));
    EXPECT_EQ(pieces[1].sizes(), (at::IntArrayRef{0, 7}));
  });
}

TEST(Exchange, OfAMemberThatComesTooLateIsAMistakeOfOurs) {
  for_each_world({2}, [](int64_t) {
    auto mesh = init_device_mesh(at::kCPU, {2});
    Trade trade(Axis::of(mesh, 0), at::kFloat);
    trade.give(1, at::ones({1}));
    EXPECT_THROW(trade.give(0, at::ones({1})), c10::Error);
  });
}

// Member j has j rows.
TEST(Gather, BringsThePieceOfEveryMember) {
  for_each_world({1, 2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto& axis = Axis::of(mesh, 0);
    Shards mine;
    std::vector<c10::DimVector> shapes;
    for (int64_t member = 0; member < n; ++member) shapes.push_back({member, 3});
    for (size_t slot = 0; slot < axis.slot_count(); ++slot) {
      mine.push_back(at::full({3, axis.position(slot)}, axis.position(slot), at::kDouble).t());
    }
    auto known = std::make_shared<const std::vector<c10::DimVector>>(shapes);
    auto gathered = gather(axis, mine, std::vector<PieceShapes>(mine.size(), known));
    for (size_t slot = 0; slot < mine.size(); ++slot) {
      auto pieces = gathered.pieces(slot);
      for (int64_t member = 0; member < n; ++member) {
        EXPECT_TRUE(at::equal(pieces[member], at::full({member, 3}, member, at::kDouble)));
      }
    }
  });
}

TEST(Packed, PiecesThatStandOneBehindTheOtherAreNotCopied) {
  auto whole = at::arange(12).reshape({4, 3});
  auto rows = [&](int64_t begin, int64_t count) { return whole.narrow(0, begin, count); };
  auto as_is = [&](std::vector<at::Tensor> pieces) {
    auto flat = packed(pieces, whole.options());
    std::vector<at::Tensor> expected;
    for (auto& piece : pieces) expected.push_back(piece.reshape(-1));
    EXPECT_TRUE(at::equal(flat, at::cat(expected)));
    EXPECT_TRUE(flat.is_contiguous());
    return flat.is_alias_of(whole);
  };
  EXPECT_TRUE(as_is({whole}));
  EXPECT_TRUE(as_is({rows(0, 2), rows(2, 1), rows(4, 0), rows(3, 1)}));
  EXPECT_TRUE(as_is({rows(1, 1), rows(2, 1)}));
  EXPECT_FALSE(as_is({rows(1, 1), rows(0, 1)}));  // in another order
  EXPECT_FALSE(as_is({rows(0, 1), rows(2, 1)}));  // a gap
  EXPECT_FALSE(as_is({rows(0, 1), rows(0, 1)}));
  EXPECT_FALSE(as_is({rows(0, 1), rows(1, 1).clone()}));
  EXPECT_FALSE(as_is({whole.t()}));
  EXPECT_FALSE(as_is({whole.narrow(1, 0, 1), whole.narrow(1, 1, 2)}));
  EXPECT_EQ(packed({}, whole.options()).numel(), 0);
}

TEST(Packed, ConjugatesAndNegativesAreCarriedOut) {
  auto values = at::complex(at::arange(3.), at::ones({3}));
  auto stored = packed(at::conj(values), values.options());
  EXPECT_FALSE(stored.is_conj());
  EXPECT_TRUE(at::equal(stored, at::conj(values).resolve_conj()));
  auto negative = at::imag(at::conj(values)).contiguous();
  EXPECT_FALSE(packed(at::_neg_view(negative), negative.options()).is_neg());
}

}  // namespace
}  // namespace intarsia::redistribute_exchange_test
