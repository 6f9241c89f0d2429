// What a move takes of a rank's memory.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/core/world.h"
#include "intarsia/tensor/dtensor.h"
#include "tests/support/peak_memory.h"

namespace intarsia::processes_memory_test {
namespace {

TEST(MemoryOfProcesses, MovesFromCutToCutAllocateNothingOfGlobalSize) {
  auto ranks = current_world().size();
  auto x = zeros({64, 256}, init_device_mesh(at::kCPU, {ranks}), {Shard(0)});
  auto largest = largest_block_of([&] { redistribute(x, {Shard(1)}).mul_(2); });
  EXPECT_GT(largest, 0);
  EXPECT_LE(largest, 64 * 256 * 4 / ranks);
}

}  // namespace
}  // namespace intarsia::processes_memory_test
