#include "intarsia/transport/shm/shm_progress_engine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "intarsia/comm/quiet_thread.h"
#include "intarsia/watch/flight_recorder.h"

namespace intarsia {
namespace {

constexpr std::chrono::milliseconds kLongestSleep{50};  // then a wait looks around

// Most threads that start a collective wait for it at once, and move its bytes themselves: two threads would only be in
// each other's way.
constexpr std::chrono::microseconds kGrace{200};

// How often a wait looks before it sleeps, some 20 us: less than it takes to be woken. It soon lets others run in
// between, for whom it waits may have to run on this core.
constexpr int kSpins = 60, kYields = 40;

// With more members than cores, a spinning thread would take the core of the one it waits for.
void spin(int turn, bool crowded) { crowded || turn > kSpins ? void(sched_yield()) : pause_core(); }

}  // namespace

// A collective on which a thread may wait.
struct ShmProgressEngine::Pending {
  std::shared_ptr<ShmProgressEngine> progress;
  std::shared_ptr<Task> task;
  Pending(std::shared_ptr<ShmProgressEngine> progress, std::shared_ptr<Task> task)
      : progress(std::move(progress)), task(std::move(task)) {}
  Pending(const Pending&) = delete;  // the last one to go would be the first
  Pending& operator=(const Pending&) = delete;

  void wait() const {
    std::vector<std::shared_ptr<Task>> over;
    Lock lock(progress->mutex_);
    if (task->finished()) return;
    progress->line().error.check();
    wait_for_entry(task->call);
    progress->drive(*task, lock);
    over.swap(progress->over_);
  }
  ~Pending() {
    std::lock_guard lock(progress->mutex_);
    if (task->finished() || progress->line().error.exists()) return;
    progress->dropped_ = true;
    progress->wake_server();
  }
};

ShmProgressEngine::ShmProgressEngine(ShmLine line) : line_(std::move(line)), pid_(getpid()) {
  crowded_ = this->line().size() > cores_for_us();
}

void ShmProgressEngine::close() {
  if (getpid() != pid_) {  // a fork of the member, which shares its memory: it has no such thread and says nothing
    (void)server_.release();
    return;
  }
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(stopping_, true)) return;
    if (!line().error.exists()) give_up("the world was closed", Farewell::left, {});
  }
  for_server_.notify_all();
  wake_sleepers(me().event);
  if (server_) server_->join();
}

void ShmProgressEngine::finish(Task& task) {
  std::vector<std::shared_ptr<Task>> over;
  Lock lock(mutex_);
  line().error.check();
  add(task, true);
  drive(task, lock);
  over.swap(over_);
}

Wait ShmProgressEngine::begin(const std::shared_ptr<ShmProgressEngine>& progress, std::shared_ptr<Task> task) {
  Lock lock(progress->mutex_);
  progress->line().error.check();
  task->self = task;
  progress->add(*task, false);
  try {
    progress->move_all();
  } catch (const UnexpectedMessage&) {
    // The wait reports it.
  }
  auto over = std::exchange(progress->over_, {});  // destroyed after the lock is released
  if (task->finished()) return lock.unlock(), Wait();
  if (progress->needs_server()) progress->wake_server();
  lock.unlock();
  auto pending = std::make_shared<Pending>(progress, std::move(task));
  return [pending] { pending->wait(); };
}

void ShmProgressEngine::add(Task& task, bool waits) {
  line().number(task.call, waits);
  task.write_headers();
  under_way_.push_back(&task);
}

// Rings are read and written in the order of the collectives.
bool ShmProgressEngine::move_all() {
  bool moved = false, may_push = true, may_pull = true;
  for (auto* task : under_way_) {
    moved |= task->move(may_push, may_pull);
    may_push = may_push && task->sent();
    may_pull = may_pull && task->received();
    if (!may_push && !may_pull) break;
  }
  // A collective that moves nothing (empty tensors) finishes even after one that has not finished.
  std::erase_if(under_way_, [&](Task* task) {
    if (!task->finished()) return false;
    end_entry(task->call);
    if (task->self) over_.push_back(std::move(task->self));
    return true;
  });
  if (under_way_.empty()) dropped_ = false;
  return moved;
}

void ShmProgressEngine::drive(const Task& task, Lock& lock) {
  Mover<ShmProgressEngine> mover(*this);
  Watchdog dog(line(), *this, &lock);
  dog.run([&] {
    for (int idle = 0;;) {
      bool moved = move_all();
      if (task.finished()) return;
      line().error.rethrow();  // another thread of ours may have found some
      if (moved) idle = 0;
      if (++idle < kSpins + kYields) {
        Unlocked unlocked(lock);
        spin(idle, crowded_);
        continue;
      }
      dog.look();
      sleep(lock);
    }
  });
}

// See Note [Futex events].
void ShmProgressEngine::sleep(Lock& lock) {
  sleep_unless(me().event, kLongestSleep, [&] {
    bool moved = move_all() || under_way_.empty();
    if (!moved) lock.unlock();
    return moved;
  });
  if (!lock.owns_lock()) lock.lock();
}

// Collectives end in their order, but for empty ones.
const Collective* ShmProgressEngine::current() const {
  return under_way_.empty() ? nullptr : &under_way_.front()->call;
}

// Those who wait for someone on another host themselves are not to blame.
std::vector<int64_t> ShmProgressEngine::awaited() {
  std::vector<int64_t> ranks;
  if (under_way_.empty()) return ranks;
  for (auto j : under_way_.front()->missing()) {
    auto outside = line_.segment->member(j).awaits.load();
    ranks.push_back(outside < 0 ? line().ranks[j] : outside);
  }
  return each_once(std::move(ranks));
}

// The rings of a rank that is gone may still have bytes, so this looks only at the ranks that we wait for.
std::optional<LostMember> ShmProgressEngine::find_lost(bool) {
  for (auto j : under_way_.front()->missing()) {
    bool ended = line_.processes[j].ended();
    auto& record = line_.segment->member(j);
    auto farewell = record.farewell.load();
    if (!ended && farewell == Farewell::none) continue;
    bool left = farewell == Farewell::left;
    auto* how = left ? "it left the line" : ended ? "its process ended" : "it failed";
    auto why = farewell == Farewell::failed ? std::string(record.why, strnlen(record.why, sizeof record.why)) : "";
    return LostMember{j, how, left, true, why, ended && farewell == Farewell::none};
  }
  return std::nullopt;
}

std::optional<int64_t> ShmProgressEngine::find_interrupted(const WatchedLine& line) {
  for (int64_t j = 0; j < line.size(); ++j) {
    if (line_.segment->member(j).farewell == Farewell::interrupted) return line.ranks[j];
  }
  return std::nullopt;
}

void ShmProgressEngine::give_up(const std::string& text, Farewell farewell, const std::string& said) {
  line().error.set(text);
  for (auto* task : under_way_) {
    end_entry(task->call, false);
    if (task->self) over_.push_back(std::move(task->self));
  }
  under_way_.clear();
  auto& why = me().why;
  if (farewell == Farewell::failed) why[said.copy(why, sizeof why - 1)] = 0;
  me().farewell = farewell;
  for (int64_t j = 0; j < line().size(); ++j) notify(line_.segment->member(j).event);
}

void ShmProgressEngine::give_up_because(const std::string& why, Farewell farewell) {
  Lock lock(mutex_);
  if (!line().error.exists()) give_up(why, farewell, why);
}

// Whether others wait for bytes of ours that are not in the rings yet, or for room in rings that we do not read.
bool ShmProgressEngine::needs_server() const {
  uint64_t unread = 0;
  for (auto* task : under_way_) {
    if (!task->sent()) return true;
    unread += task->unread();
  }
  return dropped_ || unread > line_.segment->least_capacity();
}

void ShmProgressEngine::wake_server() {
  if (!server_) server_ = std::make_unique<std::thread>(quiet_thread([this] { serve(); }));
  for_server_.notify_one();
}

void ShmProgressEngine::serve() {
  Lock lock(mutex_);
  bool grace = true;
  while (!stopping_) {
    if (waiting_ || line().error.exists() || !needs_server()) {
      for_server_.wait(lock);
      grace = true;
      continue;
    }
    if (std::exchange(grace, false)) {
      for_server_.wait_for(lock, kGrace);
      continue;
    }
    try {
      sleep(lock);
    } catch (const UnexpectedMessage&) {
      for_server_.wait(lock);  // who waits for it reports it
    } catch (const std::exception& error) {
      give_up(error.what(), Farewell::failed, failure_text(line().rank(), error));
    }
    auto over = std::exchange(over_, {});
    lock.unlock();
    over.clear();
    lock.lock();
  }
}

}  // namespace intarsia
