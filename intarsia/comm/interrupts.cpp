#include "intarsia/comm/interrupts.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "intarsia/comm/quiet_thread.h"

namespace intarsia {
namespace {

constexpr auto kPause = std::chrono::milliseconds(100);
constexpr int kIdlePauses = 50;  // pauses without a waiting thread, after which the nudging thread sleeps

std::atomic<const Interrupts*> interrupts_{nullptr};

// The thread that nudges. It never ends, so it need not be joined, and what it uses is never freed.
class Nudger {
 public:
  void add(c10d::Work* work) {
    std::lock_guard lock(mutex_);
    waiting_.push_back({work, false});
    if (!started_) start();
    if (asleep_) wake_.notify_one();  // not while it is at work: a wait costs no thread switch
  }

  void remove(c10d::Work* work) {
    std::lock_guard lock(mutex_);
    waiting_.erase(std::find_if(waiting_.begin(), waiting_.end(), [&](auto& one) { return one.work == work; }));
  }

 private:
  struct Waiting {
    c10d::Work* work;
    bool seen;  // by the last round: shorter waits are not nudged
  };

  void start() {
    started_ = true;
    quiet_thread([this] { run(); }).detach();
  }

  [[noreturn]] void run() {
    std::unique_lock lock(mutex_);
    for (int idle = 0;; idle = waiting_.empty() ? idle + 1 : 0) {
      if (idle > kIdlePauses) {
        asleep_ = true;
        wake_.wait(lock, [&] { return !waiting_.empty(); });
        asleep_ = false;
      }
      lock.unlock();
      std::this_thread::sleep_for(kPause);
      lock.lock();
      for (auto& one : waiting_) {
        if (std::exchange(one.seen, true)) one.work->abort();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Waiting> waiting_;
  bool started_ = false, asleep_ = false;
};

std::atomic<Nudger*> nudger_{nullptr};

// A forked process has no such thread, and maybe a locked mutex: it makes a new one.
Nudger& nudger() {
  static int registered = [] {
    nudger_ = new Nudger;
    return pthread_atfork(nullptr, nullptr, [] { nudger_ = new Nudger; });
  }();
  (void)registered;
  return *nudger_;
}

}  // namespace

void set_interrupts(const Interrupts* interrupts) { interrupts_ = interrupts; }

bool interruptible() { return interrupts_.load() != nullptr; }

void check_interrupts() {
  auto* interrupts = interrupts_.load();
  if (!interrupts) return;
  try {
    interrupts->check();
  } catch (...) {
    throw Interruption{std::current_exception()};
  }
}

void repeat_interrupt() {
  if (auto* interrupts = interrupts_.load()) interrupts->repeat();
}

bool is_interrupt(const std::exception_ptr& error) {
  auto* interrupts = interrupts_.load();
  return interrupts && interrupts->stops(error);
}

Nudges::Nudges(c10d::Work* work) : work_(work) {
  if (work_) nudger().add(work_);
}

Nudges::~Nudges() {
  if (work_) nudger().remove(work_);
}

}  // namespace intarsia
