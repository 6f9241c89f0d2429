#pragma once
// Collectives of our c10d backend that are under way, and the threads that complete them.

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

// One collective that has begun. Its bytes move by themselves; what is left is to wait for them and to put them where
// they belong. Whoever needs its end does that; the others wait for that thread.
class PendingCollective {
 public:
  // `rest` is empty if it has ended.
  PendingCollective(Wait rest, std::vector<at::Tensor> results);
  PendingCollective(const PendingCollective&) = delete;
  PendingCollective& operator=(const PendingCollective&) = delete;

  void finish();  // throws what went wrong, and interruptions of this thread
  bool wait_until(std::chrono::steady_clock::time_point deadline);  // for another thread to end it; false: it has not
  bool over() const;
  std::exception_ptr error() const;
  const std::vector<at::Tensor>& results() const { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> future();  // completed by the thread that ends it

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
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // null until asked for
};

// What a backend has under way. Works share it with the backend and may outlive that.
class PendingCollectives {
 public:
  PendingCollectives();
  ~PendingCollectives();
  void add(const std::shared_ptr<PendingCollective>& one);
  // Has our thread end it: nobody waits for it, or someone only looks whether it is over.
  void take(const std::shared_ptr<PendingCollective>& one);
  std::vector<std::shared_ptr<PendingCollective>> open() const;  // in the order in which they began
  // Ends all that is open, as far as that goes in this time.
  bool end_all(std::chrono::milliseconds time);
  // Nothing is taken from now on. If `patient`, returns when our thread has ended.
  void close(bool patient);

 private:
  mutable std::mutex mutex_;
  mutable std::vector<std::weak_ptr<PendingCollective>> open_;
  std::unique_ptr<Worker> worker_;  // null: closed
};

}  // namespace intarsia
