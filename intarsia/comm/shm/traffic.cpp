#include "intarsia/comm/shm/traffic.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <c10/util/Exception.h>

#include "intarsia/comm/flight/flight.h"
#include "intarsia/comm/flight/report.h"
#include "intarsia/comm/interrupts.h"
#include "intarsia/comm/quiet_thread.h"

namespace intarsia {
namespace {

constexpr std::chrono::milliseconds kLook{50};  // between two looks at the other processes and the program around us

// Most who begin a collective wait for it at once, and move its bytes themselves: two threads would only be in each other's way.
constexpr std::chrono::microseconds kGrace{200};

constexpr std::chrono::milliseconds kExplanation{2000};  // for a rank to write down what it does
constexpr size_t kCompared = 64;                         // collectives

// How often a wait looks before it sleeps, some 20 us: less than it takes to be woken. It soon lets others run in between, for
// whom it waits may have to run on this core.
constexpr int kSpins = 60, kYields = 40;

// With more members than cores those who spin take the place of those they wait for.
void spin(int turn, bool crowded) {
  crowded || turn > kSpins ? void(sched_yield()) : pause_core();
}

}  // namespace

// A collective that someone may wait for.
struct Traffic::Pending {
  std::shared_ptr<Traffic> traffic;
  std::shared_ptr<Task> task;
  Pending(std::shared_ptr<Traffic> traffic, std::shared_ptr<Task> task) : traffic(std::move(traffic)), task(std::move(task)) {}
  Pending(const Pending&) = delete;  // the last one to go would be the first
  Pending& operator=(const Pending&) = delete;

  void wait() const {
    std::vector<std::shared_ptr<Task>> over;
    Lock lock(traffic->mutex_);
    if (task->finished()) return;
    traffic->trouble_.check();
    wait_for_flight(task->call);
    traffic->drive(*task, lock);
    over.swap(traffic->over_);
  }
  ~Pending() {
    std::lock_guard lock(traffic->mutex_);
    if (task->finished() || traffic->trouble_.exists()) return;
    traffic->dropped_ = true;
    traffic->wake_server();
  }
};

Traffic::Traffic(SharedLine line) : line_(std::move(line)), pid_(getpid()) {
  crowded_ = static_cast<int64_t>(line_.ranks.size()) > cores_for_us();
  flights_ = flight_line(line_.ranks[line_.position], line_.ranks, "shm");
}

void Traffic::close() {
  if (getpid() != pid_) {  // a fork of the member, which shares its memory: it has no such thread and says nothing
    (void)server_.release();
    return;
  }
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(stopping_, true)) return;
    if (!trouble_.exists()) give_up("the world was closed", MemberRecord::left);
  }
  for_server_.notify_all();
  wake_sleepers(me().bell);
  if (server_) server_->join();
}

void Traffic::finish(Task& task) {
  std::vector<std::shared_ptr<Task>> over;
  Lock lock(mutex_);
  trouble_.check();
  add(task, true);
  drive(task, lock);
  over.swap(over_);
}

Wait Traffic::begin(const std::shared_ptr<Traffic>& traffic, std::shared_ptr<Task> task) {
  Lock lock(traffic->mutex_);
  traffic->trouble_.check();
  task->self = task;
  traffic->add(*task, false);
  try {
    traffic->move_all();
  } catch (const WrongMessage&) {
    // It is told by the wait.
  }
  auto over = std::exchange(traffic->over_, {});  // goes behind the lock
  if (task->finished()) return lock.unlock(), Wait();
  if (traffic->needs_server()) traffic->wake_server();
  lock.unlock();
  auto pending = std::make_shared<Pending>(traffic, std::move(task));
  return [pending] { pending->wait(); };
}

void Traffic::add(Task& task, bool waits) {
  task.set_number(next_number_++);
  if (!task.call.whole) begin_flight(flights_, task.call, waits);
  history_.add(task.call);
  under_way_.push_back(&task);
}

// Lanes are read and written in the order of the collectives.
bool Traffic::move_all() {
  bool moved = false, may_push = true, may_pull = true;
  for (auto* task : under_way_) {
    moved |= task->move(may_push, may_pull);
    may_push = may_push && task->pushed();
    may_pull = may_pull && task->pulled();
    if (!may_push && !may_pull) break;
  }
  // One that moves nothing, of empty tensors, has finished also behind one that has not.
  std::erase_if(under_way_, [&](Task* task) {
    if (!task->finished()) return false;
    end_flight(task->call);
    if (task->self) over_.push_back(std::move(task->self));
    return true;
  });
  if (under_way_.empty()) dropped_ = false;
  return moved;
}

void Traffic::drive(const Task& task, Lock& lock) {
  Mover<Traffic> mover(*this);
  Clock::time_point deadline{}, next_look{};
  std::optional<NoteTimes> notes;
  try {
    for (int idle = 0;;) {
      bool moved = move_all();
      if (task.finished()) {
        if (notes && line_.larger) line_.larger->settle();
        break;
      }
      trouble_.check();  // another thread of ours may have found some
      if (moved) idle = 0;
      if (++idle < kSpins + kYields) {
        lock.unlock();
        spin(idle, crowded_);
        lock.lock();
        continue;
      }
      auto now = Clock::now();
      if (!notes) notes.emplace(), deadline = now + line_.timeout, next_look = now + kLook;
      if (now >= next_look) {
        if (notes->due()) compare_notes(lock, {});
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

// See Note [Bells].
void Traffic::sleep(Lock& lock) {
  sleep_unless(me().bell, kLook, [&] {
    bool moved = move_all() || under_way_.empty();
    if (!moved) lock.unlock();
    return moved;
  });
  if (!lock.owns_lock()) lock.lock();
}

// Bytes of a rank that is gone may still lie in its lanes, so only those count that we wait for.
void Traffic::look_around(Lock& lock, Clock::time_point deadline) {
  {
    Unlocked unlocked(lock);
    check_interrupts();
  }
  trouble_.check();
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
  lock.unlock();  // the store may take its time
  if (line_.larger) late = line_.larger->behind(late, call);
  auto seen = line_.larger ? line_.larger->last_seen(late) : line_.notes ? line_.notes->last_seen(late) : "";
  lock.lock();
  fail(late_text(late, line_.timeout, seen) + call.advice());
}

// Ranks for whom we wait: those who wait for someone on another host themselves are not to blame.
std::vector<int64_t> Traffic::awaited() const {
  std::vector<int64_t> ranks;
  for (auto j : under_way_.front()->missing()) {
    auto outside = line_.segment->member(j).awaits.load();
    ranks.push_back(outside < 0 ? line_.ranks[j] : outside);
  }
  return each_once(std::move(ranks));
}

// What the others wait in may say why nothing moves. `patience`: for those who have not yet written it down.
void Traffic::compare_notes(Lock& lock, std::chrono::milliseconds patience) {
  if (under_way_.empty() || (!line_.notes && !line_.larger)) return;
  auto call = under_way_.front()->call;
  auto history = history_.tail(kCompared);
  auto whom = awaited();
  lock.unlock();  // the store may take its time
  auto compare = [&] { return line_.larger ? line_.larger->compare(call, whom) : line_.notes->compare(history, call); };
  auto text = ask_patiently(patience, compare);
  lock.lock();
  trouble_.check();
  if (!text.empty()) fail(text);
}

// The header says what the other did, its note also why.
void Traffic::explain(Lock& lock, const WrongMessage& wrong) {
  compare_notes(lock, kExplanation);
  auto call = under_way_.front()->call;
  call.number = call.whole.value_or(call.number);
  fail(mismatch_text(call, line_.ranks[line_.position], line_.ranks[wrong.writer], wrong.found.text()));
}

void Traffic::look_for_gone(Lock& lock, const std::vector<int64_t>& missing) {
  for (auto j : missing) {
    bool ended = line_.processes[j].ended();
    auto state = line_.segment->member(j).state.load();
    if (!ended && state == MemberRecord::taking_part) continue;
    if (move_all()) return;  // what it did last
    bool compares = state == MemberRecord::failed || (line_.larger && state == MemberRecord::left);  // it failed on the larger line
    if (compares) compare_notes(lock, {});  // it may have failed because of us
    auto& why = line_.segment->member(j).why;
    if (state == MemberRecord::failed && why[0]) fail(std::string(why, strnlen(why, sizeof why)));
    auto me = line_.ranks[line_.position], rank = line_.ranks[j];
    auto advice = under_way_.front()->call.advice();
    lock.unlock();  // the store may take its time
    auto first = line_.alarm ? line_.alarm->first_gone(rank) : rank;
    lock.lock();
    trouble_.check();
    if (first == me) first = rank;
    auto others = first == rank ? "" : c10::str("and then rank ", rank, ": ");
    auto* how = state == MemberRecord::left ? "it left the line" : ended ? "its process ended" : "it failed";
    fail(gone_text({first}, others + how) + (state == MemberRecord::left ? advice : ""));
  }
}

void Traffic::give_up(const std::string& text, MemberRecord::State state, const std::string& told) {
  trouble_.set(text);
  for (auto* task : under_way_) {
    end_flight(task->call, false);
    if (task->self) over_.push_back(std::move(task->self));
  }
  under_way_.clear();
  auto& why = me().why;
  if (state == MemberRecord::failed) why[told.copy(why, sizeof why - 1)] = 0;
  me().state = state;
  for (size_t j = 0; j < line_.ranks.size(); ++j) ring(line_.segment->member(j).bell);
}

void Traffic::give_up_because(const std::string& why, MemberRecord::State state) {
  Lock lock(mutex_);
  if (!trouble_.exists()) give_up(why, state, why);
}

// An op may have failed while it reduced.
void Traffic::give_up_after(const std::exception& error) {
  if (trouble_.exists()) return;
  auto* ours = dynamic_cast<const c10::Error*>(&error);
  give_up(error.what(), MemberRecord::failed,
          c10::str("rank ", line_.ranks[line_.position], " failed: ", ours ? ours->what_without_backtrace() : error.what()));
}

void Traffic::fail(const std::string& text) {
  give_up(text, MemberRecord::failed, text);
  report_failure();
  C10_THROW_ERROR(DistBackendError, text);
}

// Others wait for bytes of ours that are not in the lanes yet, or for room in lanes that we do not read.
bool Traffic::needs_server() const {
  uint64_t unread = 0;
  for (auto* task : under_way_) {
    if (!task->pushed()) return true;
    unread += task->unread();
  }
  return dropped_ || unread > line_.segment->least_capacity();
}

void Traffic::wake_server() {
  if (!server_) server_ = std::make_unique<std::thread>(quiet_thread([this] { serve(); }));
  for_server_.notify_one();
}

void Traffic::serve() {
  Lock lock(mutex_);
  bool grace = true;
  while (!stopping_) {
    if (waiting_ || trouble_.exists() || !needs_server()) {
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
      for_server_.wait(lock);  // who waits for it tells
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
