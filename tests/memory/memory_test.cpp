// What many ops and several threads do to the process. Simulated worlds show it all.

#include <atomic>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/simulation/simulation.h"
#include "tests/support/lay_out.h"
#include "tests/support/peak_memory.h"

namespace intarsia::memory_memory_test {
namespace {

DeviceMesh line() { return init_device_mesh(at::kCPU, {current_world().size()}); }
at::Tensor ramp(std::vector<int64_t> shape) {
  return at::arange(c10::multiply_integers(shape), at::kDouble).reshape(shape);
}
at::Tensor cut(const at::Tensor& whole, const char* placements = "[S(0)]") {
  return lay_out(whole, line(), parse_placements(placements));
}

TEST(Threads, SeveralMayRunThem) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      auto world = simulate(2 + id % 2);
      for (int64_t i = 0; i < 200; ++i) {
        auto x = ramp({1 + i % 7, 3});
        if (!at::allclose(full_tensor(cut(x).matmul(cut(x.t(), "[R]")).relu().sum(0)), x.matmul(x.t()).relu().sum(0)))
          ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

[[maybe_unused]] int64_t resident_pages() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident;
}

// Sanitizers keep freed memory for a while (and look for leaks themselves).
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Memory, AHundredThousandLeaveMemoryFlat) {
  auto world = simulate(2);
  auto x = cut(ramp({8, 8})).requires_grad_();
  auto some = [&](int64_t count) {
    for (int64_t i = 0; i < count; i += 5) {
      auto y = (x * 2).relu().view({64}).slice(0, 0, 32 + i % 30);
      y.sum().backward();
      x.mutable_grad() = at::Tensor();
    }
  };
  some(10000);
  auto before = resident_pages();
  some(100000);
  EXPECT_LE(resident_pages() - before, 2000) << "pages of 4 KiB";
}
#endif

// What ranks exchange passes through one block of this process, so moves are looked at in real processes:
// tests/processes/memory_test.cpp.
TEST(Memory, AllocateNothingOfGlobalSize) {
  auto world = simulate(8);
  auto x = zeros({64, 256}, line(), {Shard(0)}), z = zeros({64, 256}, line(), {Shard(1)});
  auto bias = zeros({256}, line(), {Replicate()});
  auto largest = largest_block_of([&] {
    auto y = (x + bias).relu().view({8, 8, 256}).transpose(0, 1).sum({0});
    (z * 2).mul_(2);
  });
  EXPECT_GT(largest, 0);
  EXPECT_LE(largest, 64 * 256 * 4 / 8);
}

}  // namespace
}  // namespace intarsia::memory_memory_test
