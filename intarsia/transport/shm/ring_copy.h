#pragma once
// Copies bytes into a ring, past the caches where that is faster.

#include <cstdint>

namespace intarsia {

// Note [Two ways into a ring]
// Another core has read the memory of a ring before it is written again. If both cores share a cache, plain stores are
// fastest, since the reader finds the bytes there. If they do not, every cache line has to be fetched from the other
// core before it can be written, and once more to be read; then stores past the caches take half the time. Which is the
// case depends on where the system runs the ranks, and changes while they run. The writer measures it: it goes past the
// caches if that has recently been much faster, and tries the other way from time to time. If both take about as long
// for the writer, the reader is better off with the caches.
class RingCopy {
 public:
  void operator()(char* to, const char* from, uint64_t bytes);
  // Whether stores past the caches are faster at present.
  bool past_caches() const;

 private:
  double cached_ = 0, past_ = 0;  // recent ticks per byte; 0: not tried yet
  uint32_t turn_ = 0;
};

}  // namespace intarsia
