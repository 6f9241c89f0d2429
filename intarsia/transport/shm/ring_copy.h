#pragma once
// Copies bytes into a ring, past the caches where that is faster.

#include <cstdint>

namespace intarsia {

// Note [Two ways into a ring]
// The memory of a ring was read by another core before it is written again. If both cores share a cache, plain stores
// are fastest, as the reader finds the bytes there. If they do not, every line has to be fetched from the other core
// before it can be written, and once more to be read; then stores past the caches take half the time. Which of them it
// is depends on where the system runs the ranks, and changes while they run. The writer sees it by itself: it goes past
// the caches where that has lately been faster by far, and tries the other way from time to time. Where both take about
// as long for it, the reader is better off with the caches.
class RingCopy {
 public:
  void operator()(char* to, const char* from, uint64_t bytes);
  // Whether stores past the caches are the better way now.
  bool past_caches() const;

 private:
  double cached_ = 0, past_ = 0;  // ticks per byte, lately; 0: not tried yet
  uint32_t turn_ = 0;
};

}  // namespace intarsia
