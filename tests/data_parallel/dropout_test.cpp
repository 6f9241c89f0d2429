// Dropout under data parallelism: with a LocalRandomScope each rank draws the masks of its rows, those of one device
// with all rows.

#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "intarsia/random/local_random_scope.h"
#include "tests/data_parallel/models.h"

namespace intarsia::data_parallel_dropout_test {
namespace {

torch::nn::Sequential dropping() {
  torch::manual_seed(8);
  torch::nn::Sequential model(torch::nn::Linear(5, 7), torch::nn::Dropout(0.5), torch::nn::Linear(7, 3),
                              torch::nn::Dropout(0.2));
  model->to(at::kDouble);
  return model;
}

// Losses and parameters of 20 steps, whatever the number of ranks.
template <class MakeParallel>
void compare_training(MakeParallel make) {
  auto mesh = all_ranks();
  auto model = dropping(), plain = dropping();
  make(model, mesh);
  torch::optim::SGD own(model->parameters(), 0.1), goal(plain->parameters(), 0.1);
  for (int64_t step = 0; step < 20; ++step) {
    own.zero_grad(), goal.zero_grad();
    auto batch = inputs(step, {24, 5});
    torch::manual_seed(step);
    plain->forward(batch).square().mean().backward();
    torch::manual_seed(step);
    LocalRandomScope scope(mesh);
    model->forward(mine(batch, mesh)).square().mean().backward();
    own.step(), goal.step();
  }
  expect_same_tensors(*model, *plain, 1e-11);
}

TEST(DropoutOfRows, UnderReplicateIsThatOfOneDevice) {
  in_every_world([] { compare_training([](auto model, auto& mesh) { replicate(model, mesh); }); });
}

TEST(DropoutOfRows, UnderFullyShardIsThatOfOneDevice) {
  in_every_world([] { compare_training([](auto model, auto& mesh) { fully_shard(*model, mesh); }); });
}

}  // namespace
}  // namespace intarsia::data_parallel_dropout_test
