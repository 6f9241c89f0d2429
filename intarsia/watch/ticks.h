#pragma once
// A clock that costs next to nothing to read, since every collective reads it.

#include <chrono>
#include <cstdint>

namespace intarsia {

// Grows steadily; ticks_per_ns turns differences into time. Never 0.
inline uint64_t ticks_now() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return std::chrono::steady_clock::now().time_since_epoch().count();
#endif
}

// Turns ticks into nanoseconds since 1970, so that the records of several ranks of a host can be compared.
class TickScale {
 public:
  TickScale();  // as of now; more precise the longer the process runs
  int64_t ns(uint64_t ticks) const;

 private:
  uint64_t ticks_;
  int64_t ns_;
  double ns_per_tick_;
};

}  // namespace intarsia
