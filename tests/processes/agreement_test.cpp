// Mistakes that only one rank makes are errors on all of them: nobody is left waiting.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/comm/agreement.h"
#include "intarsia/intarsia.h"

namespace intarsia::processes_agreement_test {
namespace {

TEST(AgreementInProcesses, AShardThatDoesNotFitIsAnErrorOnEveryRank) {
  auto mesh = init_device_mesh(at::kCPU, {world_size()}, {"tp"});
  FromLocalOptions options;
  options.run_check = true;
  auto wider = at::ones({2, rank() == 1 ? 4 : 3});
  EXPECT_THROW(from_local(wider, mesh, {Shard(0)}, options), c10::ValueError);
  auto deeper = rank() == 1 ? at::ones({2, 3, 1}) : at::ones({2, 3});
  EXPECT_THROW(from_local(deeper, mesh, {Shard(0)}, options), c10::ValueError);
  EXPECT_EQ(from_local(at::ones({2, 3}), mesh, {Shard(0)}, options).size(0), 2 * world_size());
}

TEST(AgreementInProcesses, APlainTensorThatDiffersOnOneRankIsAnErrorOnEveryRank) {
  auto mesh = init_device_mesh(at::kCPU, {world_size()}, {"tp"});
  auto x = distribute_tensor(at::ones({4}), mesh, {Shard(0)});
  PlainTensorScope verify(PlainTensors::verify);
  EXPECT_THROW(x + at::full({4}, rank() == 1 ? 2 : 1), c10::ValueError);
  EXPECT_TRUE(at::equal(full_tensor(x + at::ones({4})), at::full({4}, 2.f)));
}

TEST(AgreementInProcesses, TextsOfAnyLengthAndNumbersAreExchangedAsAgreements) {
  auto& everyone = Axis::whole(init_device_mesh(at::kCPU, {world_size()}));
  auto text = [](int64_t rank) {
    return std::string(rank % 2 ? 1000 + rank : rank, 'a');
  };  // empty, long and short ones
  CommDebugMode comms;
  auto texts = exchange_texts(everyone, text(rank()));
  auto numbers = exchange_numbers(everyone, {rank(), -10 * rank()});
  EXPECT_EQ(exchange_max(everyone, 10 - rank()), 10);
  for (int64_t r = 0; r < world_size(); ++r) {
    EXPECT_EQ(texts[r], text(r));
    EXPECT_EQ(numbers[r], (std::vector<int64_t>{r, -10 * r}));
  }
  EXPECT_EQ(comms.agreements().size(), 4u);  // lengths, long texts, numbers, the highest
  EXPECT_TRUE(comms.events().empty());
}

}  // namespace
}  // namespace intarsia::processes_agreement_test
