#include "intarsia/comm/worker.h"

#include <unistd.h>

#include <chrono>
#include <exception>
#include <utility>

#include "intarsia/comm/interrupts.h"
#include "intarsia/comm/quiet_thread.h"

namespace intarsia {

struct Worker::Job {
  std::function<void()> work, give_up;
  std::mutex mutex;
  std::condition_variable ended;
  bool over = false;
  std::exception_ptr error;

  void run() {
    std::exception_ptr thrown;
    try {
      work();
    } catch (...) {
      thrown = std::current_exception();
    }
    work = nullptr;  // and the tensors that it holds
    std::lock_guard lock(mutex);
    error = thrown;
    over = true;
    ended.notify_all();
  }

  void wait() {
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, std::chrono::milliseconds(100), [&] { return over; })) {
      lock.unlock();
      try {
        check_interrupts();
      } catch (const Interruption&) {
        give_up();
        throw;
      }
      lock.lock();
    }
    if (error) std::rethrow_exception(error);
  }
};

Worker::~Worker() {
  if (!thread_) return;
  if (getpid() != pid_) {  // a fork, which has no such thread
    (void)thread_.release();
    return;
  }
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  more_.notify_one();
  thread_->join();
}

Wait Worker::run(std::function<void()> work, std::function<void()> give_up) {
  auto job = std::make_shared<Job>();
  job->work = std::move(work);
  job->give_up = std::move(give_up);
  std::lock_guard lock(mutex_);
  jobs_.push_back(job);
  if (!thread_) {
    pid_ = getpid();
    thread_ = std::make_unique<std::thread>(quiet_thread([this] { serve(); }));
  }
  more_.notify_one();
  return [job] { job->wait(); };
}

bool Worker::idle() {
  std::lock_guard lock(mutex_);
  return jobs_.empty() && !running_;
}

bool Worker::claim() {
  std::lock_guard lock(mutex_);
  if (!jobs_.empty() || running_) return false;
  return running_ = true;
}

void Worker::release() {
  {
    std::lock_guard lock(mutex_);
    running_ = false;
  }
  more_.notify_one();
}

bool Worker::runs_here() const { return thread_ && thread_->get_id() == std::this_thread::get_id(); }

void Worker::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    more_.wait(lock, [&] { return stopping_ || (!jobs_.empty() && !running_); });
    if (jobs_.empty()) return;
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    running_ = true;
    lock.unlock();
    job->run();
    job.reset();
    lock.lock();
    running_ = false;
  }
}

}  // namespace intarsia
