#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/intarsia.h"
#include "tests/support/error_text.h"

namespace intarsia {
namespace {

TEST(Draws, OfRanksWithOtherSeedsFollowTheFirst) {
  auto mesh = init_device_mesh(at::kCPU, {world_size()});
  torch::manual_seed(rank());
  auto t = zeros({5, 3}, mesh, {Replicate()});
  CommDebugMode comms;
  t.uniform_();
  EXPECT_EQ(comms.text().substr(0, 9), "broadcast");
  torch::manual_seed(0);
  EXPECT_TRUE(shards_of(t)[0].equal(at::zeros({5, 3}).uniform_()));
}

TEST(RandomScope, AgreesOnceAndThenSendsNothing) {
  auto mesh = init_device_mesh(at::kCPU, {world_size()});
  torch::manual_seed(3);
  auto expected = at::dropout(at::ones({50, 60}), 0.3, true) + at::rand({50, 60});
  torch::manual_seed(3);
  CommDebugMode comms;
  RandomScope scope(mesh);
  EXPECT_EQ(comms.text().substr(0, 10), "all_gather");
  CommDebugMode draws;
  auto t = at::dropout(ones({50, 60}, mesh, {Shard(0)}), 0.3, true) + zeros({50, 60}, mesh, {Shard(0)}).uniform_();
  EXPECT_EQ(draws.text(), "");
  EXPECT_TRUE(full_tensor(t).equal(expected));
}

TEST(RandomScope, NamesARankWhoseGeneratorDiffers) {
  auto mesh = init_device_mesh(at::kCPU, {world_size()});
  torch::manual_seed(rank() == 1 ? 4 : 3);
  auto error = error_text<c10::ValueError>([&] { RandomScope scope(mesh); });
  EXPECT_NE(error.find("the generators of the ranks [1] are in another state than that of rank 0"), error.npos) << error;
  torch::manual_seed(3);
}

TEST(RandomScope, TellsARankThatHasDrawnByItself) {
  auto mesh = init_device_mesh(at::kCPU, {world_size()});
  torch::manual_seed(3);
  auto t = zeros({5, 3}, mesh, {Shard(0)});
  RandomScope scope(mesh);
  at::rand({1});
  auto error = error_text<c10::Error>([&] { t.uniform_(); });
  EXPECT_NE(error.find(c10::str("rank ", rank(), " has seeded or used its generator by itself")), error.npos) << error;
  scope.agree();
  t.uniform_();
}

TEST(RandomScope, ComparesAGeneratorOfOnesOwnWhenItIsFirstDrawnFrom) {
  auto mesh = init_device_mesh(at::kCPU, {world_size()});
  torch::manual_seed(3);
  RandomScope scope(mesh);
  auto t = zeros({5, 3}, mesh, {Shard(0)});
  auto error = error_text<c10::ValueError>([&] { t.uniform_(0, 1, at::detail::createCPUGenerator(rank())); });
  EXPECT_NE(error.find("are in another state"), error.npos) << error;
  auto mine = at::detail::createCPUGenerator(7);
  t.uniform_(0, 1, mine);
  CommDebugMode draws;
  t.uniform_(0, 1, mine);
  EXPECT_EQ(draws.text(), "");
}

}  // namespace
}  // namespace intarsia
