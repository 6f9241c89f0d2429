// Numbers of all ranks, and what a program asks about itself.

#include <gtest/gtest.h>

#include <cstdlib>

#include <ATen/ATen.h>

#include "intarsia/job/first_rank.h"
#include "intarsia/job/init.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/over_ranks.h"
#include "tests/support/error_text.h"
#include "tests/support/world.h"
#include "tests/support/worlds.h"

namespace intarsia::tensor_over_ranks_test {
namespace {

// 1, 10, 100, ...: a value per rank.
at::Tensor signs() {
  Shards values;
  for (auto rank : current_world().hosted()) values.push_back(at::scalar_tensor(sign_of(rank), at::kDouble));
  return values.size() == 1 ? values[0] : per_rank(values);
}

TEST(OverRanks, ATensorWithAValuePerRankIsReduced) {
  in_every_world([] {
    auto n = current_world().size();
    EXPECT_EQ(sum_over_ranks(signs()), sum_of_signs(n));
    EXPECT_EQ(max_over_ranks(signs()), sign_of(n - 1));
    EXPECT_DOUBLE_EQ(mean_over_ranks(signs()), static_cast<double>(sum_of_signs(n)) / static_cast<double>(n));
  });
}

TEST(OverRanks, APlainNumberIsThatOfEveryRank) {
  in_every_world([] {
    auto n = static_cast<double>(current_world().size());
    EXPECT_EQ(sum_over_ranks(2.5), 2.5 * n);
    EXPECT_EQ(mean_over_ranks(2.5), 2.5);
    EXPECT_EQ(max_over_ranks(at::full({1, 1}, 3, at::kLong)), 3);
    EXPECT_TRUE(std::isnan(mean_over_ranks(NAN)));
  });
}

TEST(OverRanks, ADistributedNumberIsOneForAll) {
  in_every_world([] {
    auto n = current_world().size();
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto pending = from_local(signs(), mesh, {Partial()});
    EXPECT_EQ(mean_over_ranks(pending.requires_grad_()), sum_of_signs(n));
    EXPECT_EQ(max_over_ranks(distribute_tensor(at::ones({1}), mesh, {Shard(0)})), 1);
  });
}

TEST(OverRanks, AMeshNamesTheRanksThatTakePart) {
  for_each_world({4}, [](int64_t) {
    auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    EXPECT_EQ(sum_over_ranks(1, mesh["dp"]), 2);
    EXPECT_EQ(sum_over_ranks(1, mesh), 4);
    if (process_world()) {
      EXPECT_EQ(sum_over_ranks(signs(), mesh["dp"]), rank() % 2 ? 1010 : 101);
    } else {
      EXPECT_EQ(error_text<c10::ValueError>([&] { sum_over_ranks(signs(), mesh["dp"]); }),
                "[sum_over_ranks] the groups of " + mesh["dp"].text() +
                    " come to 101 and 1010, and this process plays all of them. Leave the mesh out, or give one whose "
                    "only group is all "
                    "ranks.");
    }
  });
}

TEST(OverRanks, MoreThanANumberIsAnError) {
  EXPECT_EQ(error_text<c10::ValueError>([] { mean_over_ranks(at::ones({2})); }),
            "[mean_over_ranks] needs one number per rank, but the tensor has shape [2]. Reduce it first, as by "
            "mean().");
  EXPECT_EQ(error_text<c10::ValueError>([] { mean_over_ranks(at::Tensor()); }),
            "[mean_over_ranks] needs one number per rank, but the tensor is undefined. Reduce it first, as by mean().");
}

TEST(FirstRank, IsOneOfAllAndPlayedByASimulation) {
  in_every_world([] {
    EXPECT_EQ(is_first_rank(), current_world().hosted()[0] == 0);
    EXPECT_EQ(sum_over_ranks(is_first_rank()), process_world() ? 1 : current_world().size());
    testing::internal::CaptureStdout();
    print_once("loss ", 0.5);
    print_with_rank("has ", 3, " rows");
    auto n = std::to_string(current_world().size()), last = std::to_string(current_world().size() - 1);
    auto mine =
        process_world() || n == "1" ? "rank " + std::to_string(current_world().hosted()[0]) : "ranks 0 to " + last;
    EXPECT_EQ(testing::internal::GetCapturedStdout(),
              std::string(is_first_rank() ? "loss 0.5\n" : "") + "[" + mine + " of " + n + "] has 3 rows\n");
  });
}

}  // namespace
}  // namespace intarsia::tensor_over_ranks_test
