#pragma once
// Who is missing when a group over gloo could not be made.

#include <chrono>
#include <cstdint>
#include <exception>
#include <vector>

#include "intarsia/comm/alarm.h"
#include "intarsia/comm/shm/meet.h"

namespace c10d {
class Store;
}

namespace intarsia {

// Gloo connects the members of a group, and when that fails, it does not say because of whom. So each tells the store where its process is and
// how far it got.
class Making {
 public:
  // All `ranks` meet in the store, which is for this group alone.
  Making(c10d::Store& store, int64_t rank, const std::vector<int64_t>& ranks, std::chrono::milliseconds timeout);
  void done();
  // An error that names those who did not get as far, if there are any; `error` is what gloo says.
  [[noreturn]] void fail(const std::exception& error, Alarm* alarm);

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<int64_t> still_open() const;
  std::vector<int64_t> those(bool (Process::*are)() const) const;
  c10d::Store& store_;
  int64_t rank_;
  const std::vector<int64_t>& ranks_;
  std::chrono::milliseconds timeout_;
  std::vector<Process> processes_;  // of the ranks; those of other hosts never end for us
  Clock::time_point begun_;
};

}  // namespace intarsia
