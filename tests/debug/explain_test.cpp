#include "intarsia/debug/explain.h"
#include "intarsia/debug/explain_text.h"

#include <gtest/gtest.h>

#include "intarsia/simulation/simulation.h"
#include "tests/support/error_text.h"

namespace intarsia::debug_explain_test {
namespace {

DeviceMesh grid() { return init_device_mesh(c10::kCPU, {2, 4}, {"dp", "tp"}); }

TEST(Explain, ShowsTheChoiceAndItsCollectives) {
  auto world = simulate(8);
  auto free = explain("aten::mm", {parse_imagined("[8, 12] S(0)"), parse_imagined("[12, 6] R, S(1)")}, grid());
  EXPECT_EQ(free.chosen, "[S(0), R], [R, S(1)] -> [S(0), S(1)]");
  EXPECT_EQ(free.collectives, "");
  EXPECT_NE(free.text.find("=>         0  [S(0), R], [R, S(1)] -> [S(0), S(1)]"), std::string::npos) << free.text;
  auto moved = explain("aten::exp", {parse_imagined("[8, 12] P(sum), R")}, grid());
  EXPECT_NE(moved.collectives.find("input 0: "), std::string::npos) << moved.text;
  EXPECT_GT(moved.cost, 0);
}

TEST(Explain, TakesListsAndArgumentsByName) {
  auto world = simulate(8);
  auto joined = explain("cat", {parse_imagined("[8, 12] S(0)"), parse_imagined("[8, 2] S(0)")}, grid(), {{"dim", 1}});
  EXPECT_EQ(joined.chosen, "[S(0), R], [S(0), R] -> [S(0), R]");
  auto summed =
      explain("aten::sum.dim_IntList", {parse_imagined("[8, 12] S(0)")}, grid(), {{"dim", std::vector<int64_t>{0}}});
  EXPECT_EQ(summed.chosen, "[S(0), R] -> [P(sum), R]");
}

TEST(Explain, ReadsDtypes) {
  EXPECT_EQ(parse_imagined("[8] S(0) long").dtype, c10::kLong);
  EXPECT_EQ(str(parse_imagined("[8] S(0) long").placements), "[S(0)]");
  EXPECT_EQ(parse_imagined("[8, 2] double").dtype, c10::kDouble);
  EXPECT_EQ(str(parse_imagined("[8, 2] [S(0), R] bool").placements), "[S(0), R]");
  EXPECT_EQ(parse_imagined("[8] S(0), R").dtype, c10::kFloat);
  EXPECT_FALSE(parse_imagined("none").defined);
}

TEST(Explain, TellsHowAnOpIsMadeOfOthers) {
  auto world = simulate(8);
  auto told = explain("softmax.int", {parse_imagined("[8, 12] R, S(1)")}, grid(), {{"dim", 1}});
  EXPECT_EQ(told.chosen, "[R, S(1)] -> [R, S(1)]");
  EXPECT_EQ(told.text,
            "aten::softmax.int on DeviceMesh(cpu, dp=2, tp=4)\n"
            "  input 0: [8, 12] [R, S(1)]\n"
            "  It is made of other ops, each of which is decided by itself.\n\n"
            "aten::_softmax: all_reduce(max) tp 48B\n"
            "aten::_softmax: all_reduce(sum) tp 48B\n"
            "Result: [R, S(1)]\n");
  auto loss = explain("cross_entropy_loss", {parse_imagined("[8, 12] S(0)"), parse_imagined("[8] S(0) long")}, grid());
  EXPECT_EQ(loss.collectives, "aten::nll_loss_forward: all_reduce(sum) dp 4B\n");
  auto picked =
      explain("index_select", {parse_imagined("[8, 12] S(0)"), parse_imagined("[4] long")}, grid(), {{"dim", 0}});
  EXPECT_TRUE(picked.needs_data);
  auto says = "  It needs data. This is what it does with ones, and zeros for whole numbers.\n";
  EXPECT_NE(picked.text.find(says), std::string::npos) << picked.text;
}

TEST(Explain, SaysWhatIsMissing) {
  auto world = simulate(8);
  EXPECT_EQ(error_text<c10::Error>([] { explain("aten::no_such", {}, grid()); }),
            "[explain] there is no op aten::no_such. Name the overload too, as in aten::add.Tensor.");
  EXPECT_EQ(error_text<c10::Error>([] { explain("aten::mm", {parse_imagined("[8, 12]")}, grid()); }),
            "[explain] aten::mm needs its argument \"mat2\". Give it by name; the schema is aten::mm(Tensor self, "
            "Tensor mat2) -> Tensor");
  EXPECT_EQ(error_text<c10::Error>([] { parse_imagined("8, 12"); }),
            "[explain] cannot read the tensor \"8, 12\". Write its shape, placements and dtype, as in "
            "\"[8, 12] S(0), R\" or \"[8] S(0) long\".");
}

}  // namespace
}  // namespace intarsia::debug_explain_test
