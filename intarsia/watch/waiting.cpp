#include "intarsia/watch/waiting.h"

#include <sched.h>

#include <algorithm>

#include <c10/util/StringUtil.h>

#include "intarsia/comm/error_message.h"

namespace intarsia {

int64_t cores_for_us() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

bool poll_until(std::chrono::steady_clock::time_point deadline, const std::function<bool()>& done,
                const std::function<void()>& between) {
  constexpr std::chrono::microseconds kFirst{100}, kLongest{50000};
  for (auto pause = kFirst;; pause = std::min(2 * pause, kLongest)) {
    if (done()) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    between();
    std::this_thread::sleep_for(pause);
  }
}

std::vector<int64_t> each_once(std::vector<int64_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::string names_of_ranks(std::vector<int64_t> ranks) {
  ranks = each_once(std::move(ranks));
  return c10::str(ranks.size() == 1 ? "rank " : "ranks ", c10::Join(", ", ranks));
}

std::string interrupted_text(int64_t rank) {
  return c10::str("rank ", rank, " was interrupted while it waited. Start the job again.");
}

std::string failure_text(int64_t rank, const std::exception& error) {
  return c10::str("rank ", rank, " failed: ", message_of(error));
}

std::string late_text(const std::vector<int64_t>& ranks, std::chrono::milliseconds timeout, const std::string& seen) {
  return c10::str(
      names_of_ranks(ranks), " did not take part within ", std::chrono::duration<double>(timeout).count(), " s", seen,
      ". Stuck, gone, or running other code: look at the output. INTARSIA_TIMEOUT sets the wait in seconds.");
}

std::string gone_text(const std::vector<int64_t>& ranks, const std::string& how) {
  bool one = ranks.size() == 1;
  return c10::str(names_of_ranks(ranks), one ? " is" : " are", " gone (", how, "). See why ", one ? "it" : "they",
                  " ended.");
}

}  // namespace intarsia
