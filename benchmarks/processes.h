#pragma once
// For benchmarks that run as several ranks: starting them, and timing both sides of a comparison in turn.

#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/timing.h"
#include "intarsia/job/init.h"

namespace bench {

// A benchmark that was started alone becomes the launcher of `ranks` copies of itself.
inline void start_as_ranks(char** argv, int ranks) {
  if (std::getenv("WORLD_SIZE")) return;
  std::string self = argv[0];
  auto launcher = self.substr(0, self.rfind("benchmarks")) + "bin/intarsia";
  execl(launcher.c_str(), "intarsia", "run", "-n", std::to_string(ranks).c_str(), "--no-prefix", argv[0], nullptr);
  perror(launcher.c_str());
  std::exit(1);
}

using Call = std::function<void()>;

// Median wall time of each call, in microseconds. The calls take turns, so that noise falls on all alike.
inline std::vector<double> medians_us(const std::vector<Call>& calls, int rounds) {
  std::vector<std::vector<double>> times(calls.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < calls.size(); ++i) {
      intarsia::barrier();
      auto start = wall_us();
      calls[i]();
      times[i].push_back(wall_us() - start);
    }
  }
  std::vector<double> medians;
  for (auto& list : times) {
    std::sort(list.begin(), list.end());
    medians.push_back(list[list.size() / 2]);
  }
  return medians;
}

inline double median_us(const Call& call, int rounds) { return medians_us({call}, rounds)[0]; }

// `what   12.3 us   0.50x of the other (24.6 us)`, on rank 0.
inline void print_ratio(const std::string& what, double microseconds, double reference, const char* of) {
  if (intarsia::rank() != 0) return;
  printf("%-44s %10.1f us", what.c_str(), microseconds);
  if (reference > 0) printf("   %.2fx of %s (%.1f us)", microseconds / reference, of, reference);
  printf("\n");
  fflush(stdout);
}

}  // namespace bench
