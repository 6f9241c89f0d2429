#include "intarsia/transport/shm/shm_progress_engine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <c10/util/Exception.h>

#include "intarsia/comm/error_message.h"
#include "intarsia/comm/interrupts.h"
#include "intarsia/comm/quiet_thread.h"
#include "intarsia/watch/flight_recorder.h"
#include "intarsia/watch/flight_report.h"

namespace intarsia {
namespace {

constexpr std::chrono::milliseconds kLook{50};  // between two looks at the other processes and at interrupts

// Most threads that start a collective wait for it at once, and move its bytes themselves: two threads would only be in
// each other's way.
constexpr std::chrono::microseconds kGrace{200};

constexpr std::chrono::milliseconds kExplanation{2000};  // for a rank to post what it does
constexpr size_t kCompared = 64;                         // collectives

// How often a wait polls before it sleeps, some 20 us: less than a wake-up takes. It soon lets others run in between,
// since the rank that it waits for may have to run on this core.
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
    progress->error_.check();
    wait_for_entry(task->call);
    progress->drive(*task, lock);
    over.swap(progress->over_);
  }
  ~Pending() {
    std::lock_guard lock(progress->mutex_);
    if (task->finished() || progress->error_.exists()) return;
    progress->dropped_ = true;
    progress->wake_server();
  }
};

ShmProgressEngine::ShmProgressEngine(ShmLine line) : line_(std::move(line)), pid_(getpid()) {
  crowded_ = static_cast<int64_t>(line_.ranks.size()) > cores_for_us();
  flights_ = recorded_line(line_.ranks[line_.position], line_.ranks, "shm");
}

void ShmProgressEngine::close() {
  if (getpid() != pid_) {  // a fork of the member, which shares its memory: it has no such thread and says nothing
    (void)server_.release();
    return;
  }
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(stopping_, true)) return;
    if (!error_.exists()) give_up("the world was closed", MemberRecord::left);
  }
  for_server_.notify_all();
  wake_sleepers(me().event);
  if (server_) server_->join();
}

void ShmProgressEngine::finish(Task& task) {
  std::vector<std::shared_ptr<Task>> over;
  Lock lock(mutex_);
  error_.check();
  add(task, true);
  drive(task, lock);
  over.swap(over_);
}

Wait ShmProgressEngine::begin(const std::shared_ptr<ShmProgressEngine>& progress, std::shared_ptr<Task> task) {
  Lock lock(progress->mutex_);
  progress->error_.check();
  task->self = task;
  progress->add(*task, false);
  try {
    progress->move_all();
  } catch (const WrongMessage&) {
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
  task.set_number(next_number_++);
  if (!task.call.whole) begin_entry(flights_, task.call, waits);
  history_.add(task.call);
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
  Clock::time_point deadline{}, next_look{};
  std::optional<BoardTimes> board;
  try {
    for (int idle = 0;;) {
      bool moved = move_all();
      if (task.finished()) {
        if (board && line_.larger) line_.larger->settle();
        break;
      }
      error_.check();  // another thread of ours may have found some
      if (moved) idle = 0;
      if (++idle < kSpins + kYields) {
        lock.unlock();
        spin(idle, crowded_);
        lock.lock();
        continue;
      }
      auto now = Clock::now();
      if (!board) board.emplace(), deadline = now + line_.timeout, next_look = now + kLook;
      if (now >= next_look) {
        if (board->due()) compare_boards(lock, {});
        look_around(lock, deadline);
        next_look = Clock::now() + kLook;
      }
      sleep(lock);
    }
  } catch (const Interruption&) {
    give_up(kWasInterrupted, MemberRecord::interrupted);
    throw;
  } catch (const WrongMessage& wrong) {
    explain(lock, wrong);
  } catch (const std::exception& error) {
    give_up_after(error);
    throw;
  }
}

// See Note [Futex events].
void ShmProgressEngine::sleep(Lock& lock) {
  sleep_unless(me().event, kLook, [&] {
    bool moved = move_all() || under_way_.empty();
    if (!moved) lock.unlock();
    return moved;
  });
  if (!lock.owns_lock()) lock.lock();
}

// Bytes of a rank that is gone may still be in its rings, so only ranks that we wait for are checked.
void ShmProgressEngine::look_around(Lock& lock, Clock::time_point deadline) {
  {
    Unlocked unlocked(lock);
    check_interrupts();
  }
  error_.check();
  for (size_t j = 0; j < line_.ranks.size(); ++j) {
    if (line_.segment->member(j).state != MemberRecord::interrupted) continue;
    fail(interrupted_text(line_.ranks[j]));
  }
  if (under_way_.empty()) return;
  auto missing = under_way_.front()->missing();
  look_for_gone(lock, missing);
  if (Clock::now() < deadline || missing.empty()) return;
  auto late = awaited();
  auto call = under_way_.front()->call;
  lock.unlock();  // the store may be slow
  if (line_.larger) late = line_.larger->behind(late, call);
  auto seen = line_.larger ? line_.larger->last_seen(late) : line_.board ? line_.board->last_seen(late) : "";
  lock.lock();
  fail(late_text(late, line_.timeout, seen) + call.advice());
}

// The ranks that we wait for, without those that themselves wait for a rank on another host.
std::vector<int64_t> ShmProgressEngine::awaited() const {
  std::vector<int64_t> ranks;
  for (auto j : under_way_.front()->missing()) {
    auto outside = line_.segment->member(j).awaits.load();
    ranks.push_back(outside < 0 ? line_.ranks[j] : outside);
  }
  return each_once(std::move(ranks));
}

// What the others wait in may explain why nothing moves. `patience`: for those that have not posted it yet.
void ShmProgressEngine::compare_boards(Lock& lock, std::chrono::milliseconds patience) {
  if (under_way_.empty() || (!line_.board && !line_.larger)) return;
  auto call = under_way_.front()->call;
  auto history = history_.tail(kCompared);
  auto whom = awaited();
  lock.unlock();  // the store may be slow
  auto compare = [&] { return line_.larger ? line_.larger->compare(call, whom) : line_.board->compare(history, call); };
  auto text = ask_patiently(patience, compare);
  lock.lock();
  error_.check();
  if (!text.empty()) fail(text);
}

// The header says what the other rank did; its entry on the board also says why.
void ShmProgressEngine::explain(Lock& lock, const WrongMessage& wrong) {
  compare_boards(lock, kExplanation);
  auto call = under_way_.front()->call;
  call.number = call.whole.value_or(call.number);
  fail(mismatch_text(call, line_.ranks[line_.position], line_.ranks[wrong.writer], wrong.found.text()));
}

void ShmProgressEngine::look_for_gone(Lock& lock, const std::vector<int64_t>& missing) {
  for (auto j : missing) {
    bool ended = line_.processes[j].ended();
    auto state = line_.segment->member(j).state.load();
    if (!ended && state == MemberRecord::taking_part) continue;
    if (move_all()) return;  // what it did last
    bool compares =
        state == MemberRecord::failed || (line_.larger && state == MemberRecord::left);  // it failed on the larger line
    if (compares) compare_boards(lock, {});  // it may have failed because of us
    auto& why = line_.segment->member(j).why;
    if (state == MemberRecord::failed && why[0]) fail(std::string(why, strnlen(why, sizeof why)));
    auto me = line_.ranks[line_.position], rank = line_.ranks[j];
    auto advice = under_way_.front()->call.advice();
    lock.unlock();  // the store may be slow
    auto first = line_.failures ? line_.failures->first_gone(rank) : rank;
    lock.lock();
    error_.check();
    if (first == me) first = rank;
    auto others = first == rank ? "" : c10::str("and then rank ", rank, ": ");
    auto* how = state == MemberRecord::left ? "it left the line" : ended ? "its process ended" : "it failed";
    fail(gone_text({first}, others + how) + (state == MemberRecord::left ? advice : ""));
  }
}

void ShmProgressEngine::give_up(const std::string& text, MemberRecord::State state, const std::string& told) {
  error_.set(text);
  for (auto* task : under_way_) {
    end_entry(task->call, false);
    if (task->self) over_.push_back(std::move(task->self));
  }
  under_way_.clear();
  auto& why = me().why;
  if (state == MemberRecord::failed) why[told.copy(why, sizeof why - 1)] = 0;
  me().state = state;
  for (size_t j = 0; j < line_.ranks.size(); ++j) notify(line_.segment->member(j).event);
}

void ShmProgressEngine::give_up_because(const std::string& why, MemberRecord::State state) {
  Lock lock(mutex_);
  if (!error_.exists()) give_up(why, state, why);
}

// An op may have failed while it reduced.
void ShmProgressEngine::give_up_after(const std::exception& error) {
  if (error_.exists()) return;
  give_up(error.what(), MemberRecord::failed,
          c10::str("rank ", line_.ranks[line_.position], " failed: ", message_of(error)));
}

void ShmProgressEngine::fail(const std::string& text) {
  give_up(text, MemberRecord::failed, text);
  report_failure();
  C10_THROW_ERROR(DistBackendError, text);
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
    if (waiting_ || error_.exists() || !needs_server()) {
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
    } catch (const WrongMessage&) {
      for_server_.wait(lock);  // the thread that waits for it reports it
    } catch (const std::exception& error) {
      give_up_after(error);
    }
    auto over = std::exchange(over_, {});
    lock.unlock();
    over.clear();
    lock.lock();
  }
}

}  // namespace intarsia
