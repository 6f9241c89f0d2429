#pragma once
// A clock that costs next to nothing to read, for what is on the way of every collective.

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

// Turns ticks into nanoseconds since 1970, so that what several ranks of a host did can be laid side by side.
class TickScale {
 public:
  TickScale();  // as of now; the longer the process runs, the more precise
  int64_t ns(uint64_t ticks) const;

 private:
  uint64_t ticks_;
  int64_t ns_;
  double ns_per_tick_;
};

}  // namespace intarsia
