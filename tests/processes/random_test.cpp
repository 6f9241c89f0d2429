#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/intarsia.h"

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

}  // namespace
}  // namespace intarsia
