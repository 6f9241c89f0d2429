#include "intarsia/core/placement.h"

#include <set>

#include <gtest/gtest.h>

#include "tests/support/error_text.h"

namespace intarsia::core_placement_test {
namespace {

// Every kind of placement with its text form.
const std::vector<std::pair<Placement, std::string>> kTexts = {
    {Replicate(), "R"},
    {Shard(0), "S(0)"},
    {Shard(12), "S(12)"},
    {Shard(-1), "S(-1)"},
    {StridedShard(0, 2), "SS(0, 2)"},
    {StridedShard(-2, 16), "SS(-2, 16)"},
    {Partial(), "P(sum)"},
    {Partial(ReduceOp::avg), "P(avg)"},
    {Partial(ReduceOp::product), "P(product)"},
    {Partial(ReduceOp::min), "P(min)"},
    {Partial(ReduceOp::max), "P(max)"},
    {Partial(ReduceOp::band), "P(band)"},
    {Partial(ReduceOp::bor), "P(bor)"},
    {Partial(ReduceOp::bxor), "P(bxor)"},
    {NormPartial(2), "P(norm 2)"},
    {NormPartial(0.5), "P(norm 0.5)"},
};

std::string refusal(std::string text) {
  return error_text<c10::ValueError>([&] { parse_placement(text); });
}

TEST(PlacementText, EachKindPrintsAndParsesBack) {
  for (auto& [placement, text] : kTexts) {
    EXPECT_EQ(str(placement), text);
    EXPECT_EQ(parse_placement(text), placement) << text;
  }
}

TEST(PlacementText, ListsPrintAndParseBack) {
  const std::vector<std::pair<Placements, std::string>> lists = {
      {{}, "[]"},
      {{Shard(0)}, "[S(0)]"},
      {{Shard(0), Replicate()}, "[S(0), R]"},
      {{StridedShard(1, 4), Partial(), Shard(-1)}, "[SS(1, 4), P(sum), S(-1)]"},
  };
  for (auto& [list, text] : lists) {
    EXPECT_EQ(str(list), text);
    EXPECT_EQ(parse_placements(text), list) << text;
  }
}

TEST(PlacementText, MaskedSumsShowNoTable) {
  EXPECT_EQ(str(MaskedPartial({10, 4}, 0)), "P(masked sum)");
  EXPECT_NE(hash_value(MaskedPartial({10, 4}, 0)), hash_value(MaskedPartial({10, 4}, 1)));
  EXPECT_NE(Placement(MaskedPartial({10, 4}, 0)), Placement(MaskedPartial({12, 4}, 0)));
}

TEST(PlacementText, NormsWithoutAnOrderAreErrors) {
  EXPECT_EQ(error_text<c10::ValueError>([] { parse_placement("P(norm two)"); }),
            "[parse_placement] \"P(norm two)\" has no order. Write a number behind it: P(norm 2).");
  EXPECT_EQ(
      error_text<c10::ValueError>([] { NormPartial(0); }),
      "[NormPartial] a norm of order 0 cannot be pending. Use Partial(max) or Partial(min) for infinite orders and "
      "Partial(sum) for 0, and redistribute others to Replicate.");
}

TEST(PlacementText, SpacesDoNotMatter) {
  EXPECT_EQ(parse_placement("  S( 3 ) "), Placement(Shard(3)));
  EXPECT_EQ(parse_placement("SS(0,2)"), Placement(StridedShard(0, 2)));
  EXPECT_EQ(parse_placement("P( max )"), Placement(Partial(ReduceOp::max)));
  EXPECT_EQ(parse_placements(" [ S(0),SS(1,2) ,R ] "), (Placements{Shard(0), StridedShard(1, 2), Replicate()}));
  EXPECT_EQ(parse_placements("[ ]"), Placements());
}

TEST(PlacementText, WhatIsNotAPlacementIsAnError) {
  for (auto* text : {"",        " ",       "r",       "R()",         "S",
                     "S(",      "S)",      "S()",     "S(x)",        "S(0",
                     "S0)",     "S(0) R",  "S(1.5)",  "S(0, 2)",     "S(99999999999999999999)",
                     "SS(0)",   "SS(0, )", "SS(, 2)", "SS(0, 2, 3)", "()",
                     "Shard(0)"}) {
    EXPECT_EQ(refusal(text), std::string("[parse_placement] \"") + text +
                                 "\" is not a placement. Write R, S(dim), SS(dim, split) or P(op).");
  }
}

TEST(PlacementText, WhatIsNotAListIsAnError) {
  for (auto* text : {"", "S(0)", "[S(0)", "S(0)]", "["}) {
    EXPECT_EQ(error_text<c10::ValueError>([&] { parse_placements(text); }),
              std::string("[parse_placements] \"") + text +
                  "\" is not a list of placements. Write them in brackets: [S(0), R].");
  }
}

TEST(PlacementText, AListWithAGapIsAnError) {
  for (auto* text : {"[R,]", "[,R]", "[R,,R]", "[,]", "[R, S(0]", "[S0), R]", "[R S(0)]"}) {
    EXPECT_THROW(parse_placements(text), c10::ValueError) << text;
  }
}

TEST(ReduceOp, ProductHasThreeNames) {
  EXPECT_EQ(Partial("product"), Partial(ReduceOp::product));
  EXPECT_EQ(Partial("prod"), Partial(ReduceOp::product));
  EXPECT_EQ(Partial("mul"), Partial(ReduceOp::product));
  EXPECT_EQ(parse_placement("P(prod)"), Placement(Partial(ReduceOp::product)));
}

TEST(ReduceOp, AnUnknownNameIsAnError) {
  auto text =
      "[Partial] \"mean\" is not a reduction. Use sum, avg, product, min, max, band, bor, bxor, "
      "or NormPartial for a norm.";
  EXPECT_EQ(error_text<c10::ValueError>([] { Partial("mean"); }), text);
  EXPECT_EQ(refusal("P(mean)"), text);
}

TEST(Placement, PlacementsAreOrderedAndHashedByValue) {
  std::set<Placement> ordered;
  std::set<size_t> hashes;
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (auto& [placement, text] : kTexts) ordered.insert(placement), hashes.insert(hash_value(placement));
  }
  EXPECT_EQ(ordered.size(), kTexts.size());
  EXPECT_EQ(hashes.size(), kTexts.size());
}

TEST(Placement, KindsAreTold) {
  EXPECT_TRUE(is_replicate(Replicate()));
  EXPECT_TRUE(is_shard(Shard(1)));
  EXPECT_TRUE(is_partial(Partial()));
  EXPECT_FALSE(is_shard(StridedShard(1, 2)));  // a strided cut is not a plain one
  EXPECT_FALSE(is_replicate(Shard(0)));
  EXPECT_FALSE(is_partial(Replicate()));
}

TEST(Placement, CutDimIsTheDimOfBothKindsOfShard) {
  EXPECT_EQ(cut_dim(Shard(3)), 3);
  EXPECT_EQ(cut_dim(StridedShard(2, 4)), 2);
  EXPECT_EQ(cut_dim(Replicate()), -1);
  EXPECT_EQ(cut_dim(Partial()), -1);
}

TEST(Placement, TheCutMovesToAnotherDim) {
  EXPECT_EQ(str(with_cut_dim(Shard(3), 1)), "S(1)");
  EXPECT_EQ(str(with_cut_dim(StridedShard(3, 4), 1)), "SS(1, 4)");
  EXPECT_EQ(str(with_cut_dim(Replicate(), 1)), "R");
  EXPECT_EQ(str(with_cut_dim(Partial(), 1)), "P(sum)");
}

TEST(Placement, AGradientTravelsWithoutPendingReductions) {
  EXPECT_EQ(str(settled(parse_placements("[P(sum), S(0), R, SS(1, 2), P(max)]"))), "[R, S(0), R, SS(1, 2), R]");
}

TEST(Normalized, NegativeDimsCountFromTheEnd) {
  EXPECT_EQ(str(normalized(parse_placements("[S(-1), SS(-3, 2), R, P(sum), S(1)]"), 3, "test")),
            "[S(2), SS(0, 2), R, P(sum), S(1)]");
}

TEST(Normalized, OneBlockIsAPlainShard) { EXPECT_EQ(str(normalized({StridedShard(-1, 1)}, 2, "test")), "[S(1)]"); }

TEST(Normalized, ADimThatTheTensorLacksIsAnError) {
  auto text = [](const char* placements, int64_t ndim) {
    return error_text<c10::IndexError>([&] { normalized(parse_placements(placements), ndim, "redistribute"); });
  };
  EXPECT_EQ(text("[R, S(2)]", 2),
            "[redistribute] [R, S(2)] cuts dim 2, but the tensor has 2 dims. Shard one of its dims.");
  EXPECT_EQ(text("[S(-3)]", 2),
            "[redistribute] [S(-3)] cuts dim -3, but the tensor has 2 dims. Shard one of its dims.");
  EXPECT_EQ(text("[SS(5, 2)]", 1),
            "[redistribute] [SS(5, 2)] cuts dim 5, but the tensor has 1 dims. Shard one of its dims.");
  EXPECT_EQ(text("[S(0)]", 0), "[redistribute] [S(0)] cuts dim 0, but the tensor has 0 dims. Shard one of its dims.");
}

TEST(Normalized, ASplitBelowOneIsAnError) {
  EXPECT_EQ(error_text<c10::ValueError>([] { normalized({StridedShard(0, 0)}, 1, "from_local"); }),
            "[from_local] SS(0, 0) has split 0. The number of blocks must be at least 1.");
}

}  // namespace
}  // namespace intarsia::core_placement_test
