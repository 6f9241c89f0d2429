#pragma once
// What a training step takes on every rank: wall time, median of several, and what it sends.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "benchmarks/timing.h"
#include "intarsia/intarsia.h"

namespace bench {

struct Measured {
  double microseconds;
  int64_t collectives, bytes;
};

template <class Step>
Measured measure_step(Step step, int steps) {
  step();
  intarsia::CommDebugMode comms;
  step();
  comms.exit();
  std::vector<double> times;
  for (int i = 0; i < steps; ++i) {
    intarsia::barrier();
    auto start = wall_us();
    step();
    times.push_back(wall_us() - start);
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], comms.get_total_counts(), comms.total_bytes()};
}

}  // namespace bench
