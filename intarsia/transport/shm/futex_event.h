#pragma once
// An event in shared memory, on which a member sleeps until another one has published something.

#include <atomic>
#include <chrono>
#include <cstdint>

namespace intarsia {

// Note [Futex events]
// Every member has one event in the shared memory. A publisher (of bytes to read, or room to write) stores its data,
// then checks whether the member sleeps, and only then wakes it. A member that is about to sleep announces it, then
// checks once more for published data. All four accesses are sequentially consistent, so at least one of the two sees
// the other.
struct alignas(64) FutexEvent {
  std::atomic<uint32_t> wakes{0};
  std::atomic<uint32_t> sleepers{0};  // threads; too many if one was killed, which only costs vain wakes
};

// Wakes the threads that sleep on the event.
void wake_sleepers(FutexEvent& event);

// Call this after publishing.
inline void notify(FutexEvent& event) {
  if (event.sleepers.load() != 0) wake_sleepers(event);
}

// Sleeps until the event no longer has the value `wakes`, for `time` at most.
void sleep_at(FutexEvent& event, uint32_t wakes, std::chrono::milliseconds time);

// Sleeps until the event is notified, unless `ready` finds that there is something to do already.
template <class Ready>
void sleep_unless(FutexEvent& event, std::chrono::milliseconds time, Ready ready) {
  event.sleepers.fetch_add(1);
  auto before = event.wakes.load();
  if (!ready()) sleep_at(event, before, time);
  event.sleepers.fetch_sub(1);
}

}  // namespace intarsia
