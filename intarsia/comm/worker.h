#pragma once
// A thread that runs functions one after the other, for collectives that go on while nobody waits for them.

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
  ~Worker();  // when all that was asked for has ended
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The wait throws what `work` throws. It can be interrupted: `give_up` is called, and has to make `work` end.
  Wait run(std::function<void()> work, std::function<void()> give_up);
  bool idle();  // nothing is left to be done
  // If nothing is left to be done: what is asked for from now on waits until release(), while the caller does something
  // itself.
  bool claim();
  void release();
  bool runs_here() const;  // whether this is its thread, which cannot wait for itself

 private:
  struct Job;
  void serve();
  std::mutex mutex_;
  std::condition_variable more_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool stopping_ = false, running_ = false;
  int pid_ = 0;  // that of the thread
  std::unique_ptr<std::thread> thread_;
};

}  // namespace intarsia
