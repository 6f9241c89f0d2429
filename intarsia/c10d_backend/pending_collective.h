#pragma once
// Collectives of our c10d backend that are in progress, and the threads that complete them.

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "intarsia/comm/wait.h"
#include "intarsia/comm/worker.h"

namespace intarsia {

// One collective that has started. Its bytes move on their own; what remains is to wait for them and to unpack them.
// The thread that needs the result does that; other threads wait for it.
class PendingCollective {
 public:
  // `rest` is empty if it has completed.
  PendingCollective(Wait rest, std::vector<at::Tensor> results);
  PendingCollective(const PendingCollective&) = delete;
  PendingCollective& operator=(const PendingCollective&) = delete;

  void finish();  // throws its error, and interruptions of this thread
  bool wait_until(std::chrono::steady_clock::time_point deadline);  // for another thread to end it; false: not yet
  bool over() const;
  std::exception_ptr error() const;
  const std::vector<at::Tensor>& results() const { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> future();  // completed by the thread that completes the collective

 private:
  enum class State { begun, taken, over };
  void run(const Wait& rest);
  void end(std::exception_ptr error);
  void complete(c10::ivalue::Future& future) const;

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  State state_;
  Wait rest_;
  std::vector<at::Tensor> results_;
  std::exception_ptr error_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // null until requested
};

// The collectives of a backend that are in progress. Works share this object with the backend and may outlive the
// backend.
class PendingCollectives {
 public:
  PendingCollectives();
  ~PendingCollectives();
  void add(const std::shared_ptr<PendingCollective>& one);
  // The backend's thread completes it: no thread waits for it, or one only polls.
  void take(const std::shared_ptr<PendingCollective>& one);
  std::vector<std::shared_ptr<PendingCollective>> open() const;  // in the order in which they started
  // Completes all open ones, as far as possible in this time.
  bool end_all(std::chrono::milliseconds time);
  // Accepts no more from now on. If `patient`, returns when the backend's thread has ended.
  void close(bool patient);

 private:
  mutable std::mutex mutex_;
  mutable std::vector<std::weak_ptr<PendingCollective>> open_;
  std::unique_ptr<Worker> worker_;  // null: closed
};

}  // namespace intarsia
