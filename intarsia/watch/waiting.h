#pragma once
// What waits share, whatever the transport: polling, leaving a lock, and the texts of their errors.

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace intarsia {

int64_t cores_for_us();  // that this process may run on

// Between two looks at memory that another core will write.
inline void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Unlocks a lock for as long as it lives.
class Unlocked {
 public:
  explicit Unlocked(std::unique_lock<std::mutex>& lock) : lock_(lock) { lock_.unlock(); }
  ~Unlocked() { lock_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  std::unique_lock<std::mutex>& lock_;
};

// A thread that moves bytes itself. When the last one ends, the progress engine's own thread takes over if necessary.
template <class Progress>
class Mover {
 public:
  explicit Mover(Progress& progress) : progress_(progress) { ++progress_.waiting_; }
  ~Mover() {
    if (--progress_.waiting_ == 0 && progress_.needs_server()) progress_.wake_server();
  }
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

 private:
  Progress& progress_;
};

// Calls `done` at growing intervals until it is true or the deadline has passed. Calls `between` before each pause.
bool poll_until(
    std::chrono::steady_clock::time_point deadline, const std::function<bool()>& done,
    const std::function<void()>& between = [] {});

// Calls `ask` until it returns a text, for `patience` at most, but at least once.
template <class Ask>
std::string ask_patiently(std::chrono::milliseconds patience, Ask ask) {
  constexpr std::chrono::milliseconds kBetween{50};
  auto until = std::chrono::steady_clock::now() + patience;
  auto text = ask();
  while (text.empty() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(kBetween);
    text = ask();
  }
  return text;
}

constexpr auto kWasInterrupted = "this rank was interrupted while it waited";

std::vector<int64_t> each_once(std::vector<int64_t> ranks);  // in ascending order
std::string names_of_ranks(std::vector<int64_t> ranks);      // rank 1; ranks 1, 2
std::string interrupted_text(int64_t rank);
std::string failure_text(int64_t rank, const std::exception& error);  // what rank it was, for the others
// `seen`: what they were last seen doing.
std::string late_text(const std::vector<int64_t>& ranks, std::chrono::milliseconds timeout,
                      const std::string& seen = {});
// `how`: why they are known to be gone.
std::string gone_text(const std::vector<int64_t>& ranks, const std::string& how);

}  // namespace intarsia
