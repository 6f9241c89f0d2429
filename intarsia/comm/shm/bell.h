#pragma once
// How a member of a line that shares memory sleeps until another has done something for it.

#include <atomic>
#include <chrono>
#include <cstdint>

namespace intarsia {

// Note [Bells]
// Every member has one bell in the shared memory. Who publishes something (bytes to read, room to write) stores it, then
// looks whether the member sleeps, and only then rings. Who goes to sleep says so, then looks once more at what was
// published. All four accesses are sequentially consistent, so at least one of the two sees the other.
struct alignas(64) Bell {
  std::atomic<uint32_t> rings{0};
  std::atomic<uint32_t> sleepers{0};  // threads; too many if one was killed, which costs rings that nobody hears
};

// Wakes whoever sleeps at the bell.
void wake_sleepers(Bell& bell);

// To be called after publishing.
inline void ring(Bell& bell) {
  if (bell.sleepers.load() != 0) wake_sleepers(bell);
}

// Sleeps until the bell no longer shows `rings`, for `time` at most.
void sleep_at(Bell& bell, uint32_t rings, std::chrono::milliseconds time);

// Sleeps until the bell rings, unless `ready` finds that there is something to do already.
template <class Ready>
void sleep_unless(Bell& bell, std::chrono::milliseconds time, Ready ready) {
  bell.sleepers.fetch_add(1);
  auto before = bell.rings.load();
  if (!ready()) sleep_at(bell, before, time);
  bell.sleepers.fetch_sub(1);
}

}  // namespace intarsia
