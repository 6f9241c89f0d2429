#pragma once
// Timing for the benchmarks: processor time, best of several rounds, so that a busy machine does not show.

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <sstream>
#include <string>

namespace bench {

inline double cpu_us() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

inline double wall_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

// Microseconds of one call.
template <class F>
double time_us(F call, int calls = 5000, int rounds = 7) {
  for (int i = 0; i < calls / 10 + 1; ++i) call();
  double best = 1e30;
  for (int round = 0; round < rounds; ++round) {
    auto start = cpu_us();
    for (int i = 0; i < calls; ++i) call();
    best = std::min(best, (cpu_us() - start) / calls);
  }
  return best;
}

// Runs a program that prints lines `name value` and reads them. Empty if it could not run.
inline std::map<std::string, double> read_values(const std::string& command) {
  std::map<std::string, double> values;
  auto* pipe = popen(command.c_str(), "r");
  if (!pipe) return values;
  char line[256];
  while (fgets(line, sizeof line, pipe)) {
    std::istringstream words(line);
    std::string name;
    double value;
    if (words >> name >> value) values[name] = value;
  }
  pclose(pipe);
  return values;
}

}  // namespace bench
