#pragma once
// Reports the progress of a long save or load.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace intarsia::checkpoint {

// Called repeatedly on the thread that reads or writes, with the bytes of this process.
using ProgressFn = std::function<void(int64_t done, int64_t total)>;

// Reports operations longer than two seconds on stderr, about once a second on a terminal and every ten seconds
// elsewhere.
class Progress {
 public:
  Progress(std::string what, int64_t total, ProgressFn told, bool speaks);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void add(int64_t bytes);

 private:
  void say(double seconds);
  std::string what_;
  int64_t total_, done_ = 0;
  ProgressFn told_;
  bool speaks_, terminal_, said_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace intarsia::checkpoint
