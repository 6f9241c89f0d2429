#pragma once
// The cost model of communication along a mesh axis: time per message and per byte.

#include <cstdint>
#include <string>
#include <vector>

#include "intarsia/core/mesh.h"

namespace intarsia {

// Note [Cost]
// A plan costs what the busiest rank waits for: a fixed time per message and a time per byte it receives. Both are
// expressed in bytes at 1 GB/s, so an axis that has not been measured costs its bytes, plus 16384 per message.
struct LinkCost {
  double latency_us = 16.384;
  double gigabytes_per_second = 1;

  double message() const { return latency_us * 1000; }
  double of(double bytes) const { return bytes / gigabytes_per_second; }
  bool operator==(const LinkCost&) const = default;
};

// The cost along an axis; for several axes that act as one, that of the slowest.
LinkCost link_cost(const DeviceMesh& mesh, const std::vector<int64_t>& axes);

// Sets the cost of an axis. Every rank must set the same, or the ranks would choose different plans.
void set_link_cost(const DeviceMesh& mesh, int64_t axis, LinkCost cost);

// Measures all axes of the mesh by sending small and large messages, and takes the figures of the slowest line. All
// ranks of the mesh call it together, and all get the same answer. A simulation has nothing to measure and keeps its
// costs.
std::vector<LinkCost> measure_link_costs(const DeviceMesh& mesh);

// Grows when a cost is set: earlier decisions are out of date.
uint64_t link_cost_generation();

std::string str(const LinkCost& cost);  // 16.4 us + 1 GB/s

}  // namespace intarsia
