#pragma once
// Connects the members of a group over gloo, and names the missing ranks if that fails.

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "intarsia/launch/process.h"
#include "intarsia/watch/failure_board.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace intarsia {

// When gloo fails to connect the members of a group, it does not say because of which rank. So each rank writes to the
// store where its process is and how far it got.
class GlooConnector {
 public:
  // All `ranks` meet in the store, which only this group uses.
  GlooConnector(c10d::Store& store, int64_t rank, const std::vector<int64_t>& ranks, std::chrono::milliseconds timeout);

  // Runs `connect`. Gloo waits five times its timeout for a rank that ends or hangs before it has connected, so this
  // runs on a thread, which is abandoned then: `connect` holds what it needs. An error names the ranks that did not get
  // as far, if there are any.
  using Backend = c10::intrusive_ptr<c10d::Backend>;
  Backend run(std::function<Backend()> connect, FailureBoard& failures);

 private:
  using Clock = std::chrono::steady_clock;
  void wait_for(const std::future<Backend>& made, FailureBoard& failures) const;
  [[noreturn]] void fail(const std::exception& error, FailureBoard& failures);  // `error` is what gloo says
  std::vector<int64_t> still_open() const;
  std::vector<int64_t> those(bool (Process::*are)() const) const;
  c10d::Store& store_;
  int64_t rank_;
  const std::vector<int64_t>& ranks_;
  std::chrono::milliseconds timeout_;
  std::vector<Process> processes_;  // of the ranks; those of other hosts never seem to end
  Clock::time_point begun_;
};

}  // namespace intarsia
