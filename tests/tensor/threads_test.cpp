// Several threads read one tensor. Reading may have to finish something first: it happens once, and all see the result.

#include <atomic>
#include <functional>
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/intarsia.h"
#include "tests/support/worlds.h"

namespace intarsia::tensor_threads_test {
namespace {

int64_t wrong_answers(const at::Tensor& tensor, const std::function<bool(const at::Tensor&)>& right) {
  std::atomic<int64_t> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { wrong += !right(tensor); });
  for (auto& thread : threads) thread.join();
  return wrong;
}

bool is_filled_with(const at::Tensor& tensor, double value) {
  return shards_of(tensor)[0].eq(value).all().item<bool>();
}

DeviceMesh line() { return init_device_mesh(at::kCPU, {world_size()}, {"tp"}); }

TEST(Threads, ReadAPendingSumThatIsReducedOnce) {
  in_every_world([] {
    auto mesh = line();
    for (int round = 0; round < 20; ++round) {
      auto x = from_local(at::ones({5, 3}), mesh, {Partial()});
      CommDebugMode comms;
      auto n = static_cast<double>(mesh.size());
      EXPECT_EQ(wrong_answers(x, [n](auto& t) { return is_filled_with(t.exp().log().round(), n); }), 0);
      EXPECT_LE(comms.get_total_counts(), 1);
    }
  });
}

TEST(Threads, ReadAValueThatIsStillOnItsWay) {
  in_every_world([] {
    auto mesh = line();
    for (int round = 0; round < 20; ++round) {
      auto x = distribute_tensor(at::ones({5, 3}), mesh, {Shard(0)});
      auto whole = redistribute(x, {Replicate()}, /*async_op=*/true);
      EXPECT_EQ(wrong_answers(whole, [](auto& t) { return is_filled_with(t + 1, 2); }), 0);
    }
  });
}

TEST(Threads, ReadAViewWhoseBaseHasChanged) {
  in_every_world([] {
    auto x = distribute_tensor(at::ones({6, 3}), line(), {Shard(0)});
    auto row = x.select(0, 4);
    for (int round = 2; round < 20; ++round) {
      x.add_(1);
      EXPECT_EQ(wrong_answers(row, [round](auto& t) { return is_filled_with(t, round); }), 0);
    }
  });
}

}  // namespace
}  // namespace intarsia::tensor_threads_test
