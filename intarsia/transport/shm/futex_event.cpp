#include "intarsia/transport/shm/futex_event.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace intarsia {
namespace {

// Not FUTEX_PRIVATE: several processes map the word.
void futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* time) {
  static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, time, nullptr, 0);
}

}  // namespace

void wake_sleepers(FutexEvent& event) {
  event.wakes.fetch_add(1);
  futex(event.wakes, FUTEX_WAKE, INT_MAX, nullptr);
}

void sleep_at(FutexEvent& event, uint32_t wakes, std::chrono::milliseconds time) {
  timespec most{time.count() / 1000, time.count() % 1000 * 1000000};
  futex(event.wakes, FUTEX_WAIT, wakes, &most);  // returns at once if it was notified meanwhile
}

}  // namespace intarsia
