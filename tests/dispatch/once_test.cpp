// What happens once per call.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/intarsia.h"
#include "intarsia/propagate/guide.h"
#include "tests/support/world.h"

namespace intarsia::dispatch_once_test {
namespace {

// A planner's op and a guide: the call is looked at for advice, and read for its rows.
TEST(ReadCall, ComparesPlainTensorsOfTheRanksOncePerCall) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto cut = distribute_tensor(torch::arange(1., 33.).view({8, 4}) / 32, mesh, {Shard(0)});
    auto weight = torch::arange(4.), bias = torch::ones({4});
    PlainTensorScope verify(PlainTensors::verify);
    auto compared = [&] {
      CommDebugMode comms;
      auto [y, mean, rstd] = at::native_layer_norm(cut, {4}, weight, bias, 1e-5);
      EXPECT_TRUE(at::allclose(full_tensor(y), at::layer_norm(full_tensor(cut), {4}, weight, bias)));
      return comms.get_comm_counts()["broadcast"];
    };
    EXPECT_EQ(compared(), 2) << "the weight and the bias";
    set_guide({[](const Question&) { return std::nullopt; }, {}, {}});
    auto guided = compared(), again = compared();
    set_guide({});
    EXPECT_EQ(guided, 2);
    EXPECT_EQ(again, 2);
  });
}

}  // namespace
}  // namespace intarsia::dispatch_once_test
