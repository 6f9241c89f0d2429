#include "intarsia/debug/explain.h"

#include <gtest/gtest.h>

#include "intarsia/comm/simulation.h"
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
  auto summed = explain("aten::sum.dim_IntList", {parse_imagined("[8, 12] S(0)")}, grid(), {{"dim", std::vector<int64_t>{0}}});
  EXPECT_EQ(summed.chosen, "[S(0), R] -> [P(sum), R]");
}

TEST(Explain, SaysWhatIsMissing) {
  auto world = simulate(8);
  EXPECT_NE(error_text<c10::Error>([] { explain("aten::no_such", {}, grid()); }).find("there is no op aten::no_such"), std::string::npos);
  EXPECT_NE(error_text<c10::Error>([] { explain("aten::mm", {parse_imagined("[8, 12]")}, grid()); }).find("needs its argument \"mat2\""),
            std::string::npos);
  EXPECT_NE(error_text<c10::Error>([] { parse_imagined("8, 12"); }).find("cannot read the tensor"), std::string::npos);
}

}  // namespace
}  // namespace intarsia::debug_explain_test
