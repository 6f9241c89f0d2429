#include "intarsia/c10d_backend/pending_collective.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "intarsia/comm/interrupts.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAsking{100};  // between two checks for interrupts

void finish_quietly(PendingCollective& one) {
  try {
    one.finish();
  } catch (const std::exception&) {
    // The threads that wait for it get the error.
  }
}

}  // namespace

PendingCollective::PendingCollective(Wait rest, std::vector<at::Tensor> results)
    : state_(rest ? State::begun : State::over), rest_(std::move(rest)), results_(std::move(results)) {}

void PendingCollective::finish() {
  std::unique_lock lock(mutex_);
  if (state_ == State::begun) {
    state_ = State::taken;
    auto rest = std::exchange(rest_, {});
    lock.unlock();
    run(rest);
    lock.lock();
  }
  while (!ended_.wait_for(lock, kAsking, [&] { return state_ == State::over; })) {
    lock.unlock();
    check_interrupts();
    lock.lock();
  }
  if (error_) std::rethrow_exception(error_);
}

void PendingCollective::run(const Wait& rest) {
  try {
    rest();
  } catch (const Interruption&) {
    try {
      C10_THROW_ERROR(DistBackendError, "the rank was interrupted while it waited");
    } catch (const std::exception&) {
      end(std::current_exception());
    }
    throw;
  } catch (const std::exception&) {
    return end(std::current_exception());
  }
  end(nullptr);
}

void PendingCollective::end(std::exception_ptr error) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard lock(mutex_);
    error_ = std::move(error);
    state_ = State::over;
    future = future_;
  }
  ended_.notify_all();
  if (future) complete(*future);
}

void PendingCollective::complete(c10::ivalue::Future& future) const {
  if (error_) {
    future.setError(error_);
  } else {
    future.markCompleted(c10::IValue(results_));
  }
}

bool PendingCollective::wait_until(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  while (state_ != State::over) {
    auto now = std::chrono::steady_clock::now();
    if (now >= deadline) return false;
    ended_.wait_until(lock, std::min(deadline, now + kAsking));
    lock.unlock();
    check_interrupts();
    lock.lock();
  }
  return true;
}

bool PendingCollective::over() const {
  std::lock_guard lock(mutex_);
  return state_ == State::over;
}

std::exception_ptr PendingCollective::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

c10::intrusive_ptr<c10::ivalue::Future> PendingCollective::future() {
  std::unique_lock lock(mutex_);
  if (future_) return future_;
  auto made = future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  bool over = state_ == State::over;
  lock.unlock();
  if (over) complete(*made);
  return made;
}

PendingCollectives::PendingCollectives() : worker_(std::make_unique<Worker>()) {}
PendingCollectives::~PendingCollectives() { close(true); }

void PendingCollectives::add(const std::shared_ptr<PendingCollective>& one) {
  constexpr size_t kMany = 64;
  std::lock_guard lock(mutex_);
  if (open_.size() >= kMany) {
    std::erase_if(open_, [](auto& known) {
      auto alive = known.lock();
      return !alive || alive->over();
    });
  }
  open_.push_back(one);
}

void PendingCollectives::take(const std::shared_ptr<PendingCollective>& one) {
  std::lock_guard lock(mutex_);
  if (worker_) worker_->run([one] { finish_quietly(*one); }, {});
}

std::vector<std::shared_ptr<PendingCollective>> PendingCollectives::open() const {
  std::vector<std::shared_ptr<PendingCollective>> result;
  std::lock_guard lock(mutex_);
  for (auto& known : open_) {
    auto alive = known.lock();
    if (alive && !alive->over()) result.push_back(std::move(alive));
  }
  return result;
}

bool PendingCollectives::end_all(milliseconds time) {
  auto deadline = std::chrono::steady_clock::now() + time;
  auto all = open();
  for (auto& one : all) take(one);
  return std::all_of(all.begin(), all.end(), [&](auto& one) { return one->wait_until(deadline); });
}

void PendingCollectives::close(bool patient) {
  std::unique_ptr<Worker> worker;
  {
    std::lock_guard lock(mutex_);
    worker = std::move(worker_);
  }
  // A thread that ends a worker waits for it; the worker cannot wait for itself.
  if (worker && (!patient || worker->runs_here())) std::thread([left = std::move(worker)] {}).detach();
}

}  // namespace intarsia
