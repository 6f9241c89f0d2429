#include "intarsia/transport/shm/ring_copy.h"

#include <algorithm>
#include <cstring>

#include "intarsia/core/copy_past_caches.h"
#include "intarsia/watch/ticks.h"

namespace intarsia {
namespace {

constexpr uint32_t kBetweenTrials = 64;   // copies: the slower way may take a few times as long
constexpr uint64_t kTellingBytes = 4096;  // shorter copies say nothing about the speed
constexpr double kByFar = 1.5;

}  // namespace

bool RingCopy::past_caches() const { return kByFar * past_ < cached_; }

// See Note [Two ways into a ring].
void RingCopy::operator()(char* to, const char* from, uint64_t bytes) {
  if (bytes < kTellingBytes) return void(std::memcpy(to, from, bytes));
  bool past = past_caches();
  if (++turn_ % kBetweenTrials == 0) past = !past;
  auto begin = ticks_now();
  past ? copy_past_caches(to, from, bytes) : void(std::memcpy(to, from, bytes));
  auto spent = static_cast<double>(ticks_now() - begin) / static_cast<double>(bytes);
  auto& lately = past ? past_ : cached_;
  // The thread may have been interrupted meanwhile.
  lately = lately == 0 ? spent : lately + (std::min(spent, 4 * lately) - lately) / 4;
}

}  // namespace intarsia
