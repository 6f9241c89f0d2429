#include "tests/processes/flight_plays.h"

#include <chrono>
#include <cstdio>
#include <thread>

#include <ATen/ATen.h>

#include "intarsia/comm/axis.h"
#include "intarsia/job/init.h"

namespace intarsia {
namespace {

const Axis& joined_axis() {
  init();
  return Axis::of(init_device_mesh(at::kCPU, {world_size()}, {"tp"}), 0);
}

Counts equal_counts(int64_t each) { return {std::vector<int64_t>(world_size(), each)}; }

}  // namespace

void play_flights() {
  auto& axis = joined_axis();
  auto n = world_size();
  axis.all_reduce({at::ones({4})}, ReduceOp::sum);
  Counts uneven(1);
  for (int64_t r = 0; r < n; ++r) uneven[0].push_back(r + 1);
  axis.all_gather({at::ones({rank() + 1})}, {at::empty({n * (n + 1) / 2})}, uneven);
  axis.all_to_all({at::ones({2 * n})}, equal_counts(2), {at::empty({2 * n})}, equal_counts(2));
  axis.broadcast({at::ones({5})}, 0);
  axis.reduce_scatter({at::ones({3 * n})}, equal_counts(3), ReduceOp::sum);
  axis.all_gather({at::ones({2})}, {at::empty({2 * n})}, equal_counts(2));
  Wait wait;
  axis.all_reduce({at::ones({1000000})}, ReduceOp::sum, &wait);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  if (wait) wait();
}

void play_one_mismatch() {
  auto& axis = joined_axis();
  for (int i = 0; i < 5; ++i) axis.all_reduce({at::ones({4})}, ReduceOp::sum);
  try {
    if (rank() != 1) axis.all_reduce({at::ones({4})}, ReduceOp::sum);
    if (rank() == 1) axis.all_gather({at::ones({4})}, {at::empty({4 * world_size()})}, equal_counts(4));
  } catch (const std::exception&) {
    std::printf("failed\n");
  }
}

void play_one_waits() {
  auto& axis = joined_axis();
  axis.all_reduce({at::ones({4})}, ReduceOp::sum);
  auto all = at::empty({4 * world_size()});
  Wait wait;
  if (rank() == 0) axis.all_gather({at::ones({4})}, {all}, equal_counts(4), &wait);
  std::printf("ready\n");
  std::fflush(stdout);
  if (rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    axis.all_gather({at::ones({4})}, {all}, equal_counts(4));
  }
  if (wait) wait();
}

}  // namespace intarsia
