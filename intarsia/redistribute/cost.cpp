#include "intarsia/redistribute/cost.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <sstream>

#include <ATen/ATen.h>

#include "intarsia/comm/axis.h"
#include "intarsia/comm/trace.h"

namespace intarsia {
namespace {

constexpr int64_t kSmall = 64, kLarge = 1 << 20;  // bytes that a member contributes
constexpr int kRounds = 15;

std::atomic<uint64_t> generation{0};

struct Known {
  std::mutex mutex;
  std::map<std::pair<size_t, int64_t>, LinkCost> costs;  // by mesh (its hash is its address) and axis
};

Known& known() {
  static auto* all = new Known;
  return *all;
}

// Median microseconds of an all_gather of `bytes` per member.
double gather_us(const Axis& axis, int64_t bytes) {
  Shards mine, all;
  for (size_t slot = 0; slot < axis.slot_count(); ++slot) {
    mine.push_back(at::zeros({bytes}, at::kByte));
    all.push_back(at::zeros({bytes * axis.size()}, at::kByte));
  }
  Counts counts(axis.slot_count(), std::vector<int64_t>(axis.size(), bytes));
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    auto start = std::chrono::steady_clock::now();
    axis.all_gather(mine, all, counts);
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// The largest value that any rank of the mesh has.
double agreed(const DeviceMesh& mesh, double value) {
  Shards values;
  for (size_t slot = 0; slot < mesh.slots().size(); ++slot) values.push_back(at::scalar_tensor(value, at::kDouble));
  return Axis::whole(mesh).all_reduce(values, ReduceOp::max)[0].item<double>();
}

LinkCost measured(const DeviceMesh& mesh, int64_t number) {
  auto& axis = Axis::of(mesh, number);
  auto small = agreed(mesh, gather_us(axis, kSmall)), large = agreed(mesh, gather_us(axis, kLarge));
  auto received = static_cast<double>((kLarge - kSmall) * (axis.size() - 1));
  return {small, received / std::max(large - small, 1.0) / 1000};
}

}  // namespace

LinkCost link_cost(const DeviceMesh& mesh, const std::vector<int64_t>& axes) {
  LinkCost slowest;
  if (generation.load(std::memory_order_acquire) == 0) return slowest;
  std::lock_guard lock(known().mutex);
  bool first = true;
  for (auto axis : axes) {
    auto found = known().costs.find({mesh.hash(), axis});
    auto cost = found == known().costs.end() ? LinkCost() : found->second;
    if (first) slowest = cost;
    first = false;
    slowest.latency_us = std::max(slowest.latency_us, cost.latency_us);
    slowest.gigabytes_per_second = std::min(slowest.gigabytes_per_second, cost.gigabytes_per_second);
  }
  return slowest;
}

void set_link_cost(const DeviceMesh& mesh, int64_t axis, LinkCost cost) {
  TORCH_CHECK_VALUE(axis >= 0 && axis < mesh.ndim(), "[set_link_cost] ", mesh.text(), " has no axis ", axis,
                    ". It has axes 0 to ", mesh.ndim() - 1, ".");
  TORCH_CHECK_VALUE(cost.latency_us >= 0 && cost.gigabytes_per_second > 0, "[set_link_cost] got ", str(cost),
                    ". A latency is not negative, and a speed is more than zero.");
  std::lock_guard lock(known().mutex);
  auto& entry = known().costs[{mesh.hash(), axis}];
  entry = cost;
  generation.fetch_add(1, std::memory_order_release);
}

std::vector<LinkCost> measure_link_costs(const DeviceMesh& mesh) {
  CauseScope cause("measure_link_costs", false);
  std::vector<LinkCost> costs;
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    if (!mesh.world().simulated() && mesh.size(axis) > 1 && !mesh.slots().empty()) {
      set_link_cost(mesh, axis, measured(mesh, axis));
    }
    costs.push_back(link_cost(mesh, {axis}));
  }
  return costs;
}

uint64_t link_cost_generation() { return generation.load(std::memory_order_acquire); }

std::string str(const LinkCost& cost) {
  std::ostringstream text;
  text.precision(3);
  text << cost.latency_us << " us + " << cost.gigabytes_per_second << " GB/s";
  return text.str();
}

}  // namespace intarsia
