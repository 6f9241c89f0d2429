#pragma once
// A thread that runs functions one after the other, for collectives that make progress while no thread waits for them.

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "intarsia/comm/wait.h"

namespace intarsia {

class Worker {
 public:
  Worker() = default;
  ~Worker();  // when all functions have ended
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The wait throws what `work` throws. It can be interrupted: `give_up` is called, and must make `work` end.
  Wait run(std::function<void()> work, std::function<void()> give_up);
  bool idle();  // no function is running or queued
  // If the worker is idle: later functions wait until release(), while the caller does something itself.
  bool claim();
  void release();
  bool runs_here() const;  // whether this is the worker's thread, which cannot wait for itself

 private:
  struct Job;
  void serve();
  std::mutex mutex_;
  std::condition_variable more_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool stopping_ = false, running_ = false;
  int pid_ = 0;  // of the process that has the thread
  std::unique_ptr<std::thread> thread_;
};

}  // namespace intarsia
