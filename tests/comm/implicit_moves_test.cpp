#include "intarsia/comm/implicit_moves.h"

#include <gtest/gtest.h>

#include "tests/support/error_text.h"

namespace intarsia::comm_implicit_moves_test {
namespace {

TEST(ImplicitMovesPolicy, AMoveThatIsForbiddenIsNamedWithTheWayOut) {
  ImplicitMovesScope scope(ImplicitMoves::error);
  EXPECT_EQ(error_text<c10::Error>([] { judge_implicit_move("aten::mm", "all_gather tp 64B", true); }),
            "[aten::mm] Implicit redistribution occurred for a tensor: all_gather tp 64B. Call redistribute on it "
            "first, or leave the scope "
            "that forbids implicit moves.");
}

}  // namespace
}  // namespace intarsia::comm_implicit_moves_test
