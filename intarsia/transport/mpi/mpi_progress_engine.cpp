#include "intarsia/transport/mpi/mpi_progress_engine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include "intarsia/comm/quiet_thread.h"
#include "intarsia/watch/flight_recorder.h"

namespace intarsia {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kYielding{2};
constexpr microseconds kLongestSleep{1000};
constexpr milliseconds kLastMessages{5000};

thread_local std::shared_ptr<MpiTask> spare_task_;

}  // namespace

// A collective on which a thread may wait.
struct MpiProgressEngine::Pending {
  std::shared_ptr<MpiProgressEngine> progress;
  std::shared_ptr<MpiTask> task;
  bool over = false;
  Pending(std::shared_ptr<MpiProgressEngine> progress, std::shared_ptr<MpiTask> task)
      : progress(std::move(progress)), task(std::move(task)) {}
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  void wait() {
    Tasks freed;
    Lock lock(progress->mutex_);
    if (over || task->finished()) return void(over = true);
    task->side->watched->error.check();
    progress->check_thread();
    wait_for_entry(task->call);
    progress->drive(task, lock);
    over = true;
    freed.swap(progress->over_);
  }
  ~Pending() {
    std::lock_guard lock(progress->mutex_);
    if (over || task->finished() || task->side->stuck()) return;
    progress->dropped_ = true;
    progress->wake_server();
  }
};

MpiProgressEngine::MpiProgressEngine(std::shared_ptr<MpiPort> port) : port_(std::move(port)), pid_(getpid()) {
  crowded_ = port_->on_this_host > cores_for_us();
  may_serve_ =
      port_->threads == MpiThreads::multiple || (port_->started_here && port_->threads == MpiThreads::serialized);
}

MpiProgressEngine::~MpiProgressEngine() {
  if (getpid() != pid_) {  // a fork, which has no such thread
    (void)server_.release();
    return;
  }
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (auto& task : abandoned_) (void)new std::shared_ptr<MpiTask>(task);  // MPI may use it until the process ends
  }
  for_server_.notify_all();
  if (server_) server_->join();
}

void MpiProgressEngine::join(MpiEndpoint& side) {
  check_thread();
  auto& world_ranks = side.watched->ranks;
  std::vector<int> ranks(world_ranks.begin(), world_ranks.end());
  int tag = static_cast<int>(hash_of(world_ranks) % 32768);  // every MPI has these
  Lock lock(mutex_, std::defer_lock);
  if (port_->threads != MpiThreads::multiple) lock.lock();  // it waits for the others
  try {
    side.line.reset(port_->make_line(ranks, tag));
  } catch (const MpiError& error) {
    C10_THROW_ERROR(DistBackendError, c10::str("[make_group] MPI does not connect the ranks ",
                                               c10::ArrayRef<int64_t>(world_ranks), ": ", error.what()));
  }
}

// Bytes that no thread waits for may still have to reach others.
void MpiProgressEngine::leave(MpiEndpoint& side) {
  if (getpid() != pid_) return;
  side.watched->board().leave();
  Lock lock(mutex_);
  auto mine = [&](auto& task) { return task->side.get() == &side; };
  bool can_call = !port_->ended() && port_->may_call();
  auto until = Clock::now() + std::min<milliseconds>(side.watched->timeout, kLastMessages);
  for (int turn = 0; can_call && !side.stuck() && std::any_of(under_way_.begin(), under_way_.end(), mine); ++turn) {
    if (Clock::now() > until) break;
    move_all();
    rest(turn, until - kLastMessages, lock);
  }
  bool clean = can_call && !side.stuck() && std::none_of(under_way_.begin(), under_way_.end(), mine);
  if (!side.watched->error.exists()) give_up(side, "the world was closed", Farewell::none);
  if (clean) side.line->leave();
  if (!clean) (void)side.line.release();  // messages may still arrive
}

std::shared_ptr<MpiTask> MpiProgressEngine::new_task() {
  if (auto task = std::exchange(spare_task_, nullptr)) return task;
  return std::make_shared<MpiTask>();
}

void MpiProgressEngine::finish(std::shared_ptr<MpiTask> task) {
  Tasks freed;
  {
    Lock lock(mutex_);
    start(task, true);
    drive(task, lock);
    freed.swap(over_);
  }
  freed.clear();
  if (task.use_count() > 1) return;
  task->clear();
  spare_task_ = std::move(task);
}

Wait MpiProgressEngine::begin(const std::shared_ptr<MpiProgressEngine>& progress, std::shared_ptr<MpiTask> task) {
  Tasks freed;
  Lock lock(progress->mutex_);
  progress->start(task, false);
  progress->move_all();
  freed.swap(progress->over_);
  if (task->finished()) return lock.unlock(), Wait();
  if (progress->needs_server()) progress->wake_server();
  lock.unlock();
  auto pending = std::make_shared<Pending>(progress, std::move(task));
  return [pending] { pending->wait(); };
}

void MpiProgressEngine::check_thread() const {
  TORCH_CHECK(port_->threads >= MpiThreads::serialized || port_->may_call(), "MPI was started with ",
              port_->threads == MpiThreads::single ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED",
              ", so that only the thread that started it may run collectives. Call MPI_Init_thread with "
              "MPI_THREAD_SERIALIZED or "
              "MPI_THREAD_MULTIPLE.");
}

void MpiProgressEngine::start(const std::shared_ptr<MpiTask>& task, bool waits) {
  auto& side = *task->side;
  side.watched->error.check();
  check_thread();
  under_way_.push_back(task);
  if (side.unexpected) return;  // the wait reports it
  try {
    side.start(*port_, *task, waits);
  } catch (const MpiError& error) {
    give_up(side, c10::str("MPI reports: ", error.what()), Farewell::failed);
    side.watched->error.rethrow();
  }
}

bool MpiProgressEngine::move_all() {
  bool moved = false, any_over = false;
  for (size_t i = 0; i < under_way_.size(); ++i) {  // move() may take some out
    auto& task = *under_way_[i];
    if (task.side->stuck()) continue;
    moved |= move(task);
    any_over |= i < under_way_.size() && under_way_[i]->finished();
  }
  if (!any_over) return moved;
  std::erase_if(under_way_, [&](auto& task) {
    if (task->side->stuck() || !task->finished()) return false;
    end_entry(task->call);
    over_.push_back(std::move(task));
    return true;
  });
  if (under_way_.empty()) dropped_ = false;
  return moved;
}

// Threads that wait on a line report its failure, and they may be others.
bool MpiProgressEngine::move(MpiTask& task) {
  auto& side = *task.side;
  try {
    return side.move(*port_, task);
  } catch (const UnexpectedMessage& message) {
    side.unexpected = message;
    side.confused = task.call;
  } catch (const MpiFault& fault) {
    auto who =
        fault.member < 0 ? "" : " of the messages with rank " + std::to_string(side.watched->ranks[fault.member]);
    give_up(side, c10::str("MPI reports", who, ": ", fault.text), Farewell::failed);
  } catch (const MpiError& error) {
    give_up(side, c10::str("MPI reports: ", error.what()), Farewell::failed);
  } catch (const std::exception& error) {
    give_up(side, error.what(), Farewell::failed);
  }
  return true;
}

void MpiProgressEngine::rest(int turn, Clock::time_point since, Lock& lock) {
  Unlocked unlocked(lock);
  if (turn <= kTests && !crowded_) {
    pause_core();
  } else if (turn <= kTests || Clock::now() < since + kYielding) {
    sched_yield();
  } else {
    auto waited = std::chrono::duration_cast<microseconds>(Clock::now() - since);
    std::this_thread::sleep_for(std::min(waited / 16, kLongestSleep));
  }
}

// Whether others wait for bytes of ours, or for us to take theirs.
bool MpiProgressEngine::needs_server() const {
  for (auto& task : under_way_) {
    if (task->side->stuck()) continue;
    if (dropped_ || task->leaving.open || task->first_open < task->pieces.size()) return true;
  }
  return false;
}

void MpiProgressEngine::wake_server() {
  if (!may_serve_ || stopping_) return;
  if (!server_) server_ = std::make_unique<std::thread>(quiet_thread([this] { serve(); }));
  for_server_.notify_one();
}

void MpiProgressEngine::serve() {
  constexpr microseconds kShortest{10}, kLongest{200};
  auto pause = kShortest;
  Lock lock(mutex_);
  while (!stopping_) {
    if (waiting_ || !needs_server() || port_->ended()) {
      for_server_.wait(lock);
      pause = kShortest;
      continue;
    }
    pause = move_all() ? kShortest : std::min(2 * pause, kLongest);
    auto freed = std::exchange(over_, {});
    lock.unlock();
    freed.clear();
    std::this_thread::sleep_for(pause);
    lock.lock();
  }
}

}  // namespace intarsia
