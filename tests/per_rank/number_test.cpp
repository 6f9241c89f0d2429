#include "intarsia/simulation/per_rank/number.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/intarsia.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "tests/support/error_text.h"

namespace intarsia::per_rank_number_test {
namespace {

c10::SymInt ranks() { return per_rank_int({0, 1, 2, 3}); }

TEST(PerRankNumber, QuotientsAndRemaindersAreRoundedDownAsPythons) {
  EXPECT_EQ(c10::str((ranks() - 1) % 4), "3|0|1|2");
  EXPECT_EQ(c10::str((ranks() - 3) / 2), "-2|-1|-1|0");
}

TEST(PerRankNumber, IsTakenApart) {
  auto numbers = numbers_of(ranks() * 2);
  ASSERT_EQ(numbers.size(), 4u);
  EXPECT_EQ(numbers[3].toInt(), 6);
  EXPECT_TRUE(numbers_of(c10::SymInt(5)).empty());
}

TEST(PerRankNumber, MeetsADistributedTensorOnlyWhereTheRanksAgree) {
  auto world = simulate(2);
  auto x = ones({4}, init_device_mesh(at::kCPU, {2}), {Shard(0)});
  auto agreed = per_rank({torch::tensor(3.0f), torch::tensor(3.0f)}),
       differs = per_rank({torch::tensor(3.0f), torch::tensor(4.0f)});
  EXPECT_TRUE(at::equal(full_tensor(x * agreed), torch::full({4}, 3.0f)));
  EXPECT_EQ(error_text<c10::ValueError>([&] { x* differs; }),
            "[aten::mul.Tensor] a number that differs between the simulated ranks, 3 and 4, meets a distributed "
            "tensor, which is one "
            "tensor for all of them. Use it on to_local(), and from_local() on the result.");
}

TEST(PerRank, NothingAndSeveralDtypesAreNoTensor) {
  EXPECT_EQ(error_text<c10::ValueError>([] { per_rank({}); }),
            "[per_rank] no tensors are given. Give one for every hosted rank.");
  EXPECT_EQ(error_text<c10::ValueError>([] { per_rank({torch::ones(1), torch::ones(1, at::kInt)}); }),
            "[per_rank] the simulated ranks hold tensors of float and of int. One tensor can stand only for tensors of "
            "one dtype.");
}

}  // namespace
}  // namespace intarsia::per_rank_number_test
