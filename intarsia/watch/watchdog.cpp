#include "intarsia/watch/watchdog.h"

#include <thread>
#include <utility>

#include <c10/util/Exception.h>

#include "intarsia/comm/interrupts.h"
#include "intarsia/watch/flight_report.h"
#include "intarsia/watch/waiting.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{50};           // between two looks
constexpr milliseconds kExplanation{2000};  // for a rank to post what it waits in
constexpr milliseconds kNeighbours{1500};   // the same, for those who share a host with a rank that left
constexpr milliseconds kTimeToTell{500};    // for one that left to say why: it may close its connections first

}  // namespace

// Leaves the transport's lock: a store may take its time. Another thread may find out more meanwhile.
class Watchdog::Asking {
 public:
  explicit Asking(Watchdog& dog) : lock_(dog.lock_) {
    if (lock_) lock_->unlock();
  }
  ~Asking() {
    if (lock_) lock_->lock();
  }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;

 private:
  Lock* lock_;
};

std::optional<int64_t> WaitingTransport::find_interrupted(const WatchedLine& line) {
  return interruptible() ? line.failures().raised() : std::nullopt;  // else no rank of this program can be
}

void Watchdog::set_begin(std::optional<Clock::time_point> begin) {
  has_begin_ = true;
  begin_ = begin;
}

void Watchdog::run(c10::function_ref<void()> wait) {
  try {
    try {
      wait();
      if (times_) line_.board().settle();
    } catch (const LostMember& lost) {
      explain(lost);
    } catch (const UnexpectedMessage& message) {
      explain(message);
    }
  } catch (const Interruption&) {
    transport_.give_up(kWasInterrupted, Farewell::interrupted, {});
    throw;
  } catch (const std::exception& error) {  // an op may have failed while it reduced
    if (!line_.error.exists()) transport_.give_up(error.what(), Farewell::failed, failure_text(line_.rank(), error));
    throw;
  }
}

void Watchdog::look() {
  auto now = Clock::now();
  if (!times_) {
    times_.emplace();
    next_look_ = now + kLook;
    if (!has_begin_) set_begin(now);
  }
  if (now < next_look_) return;
  look_around();
  next_look_ = Clock::now() + kLook;
}

void Watchdog::look_around() {
  {
    Asking asking(*this);
    check_interrupts();
  }
  line_.error.rethrow();
  bool due = times_->due();
  if (due) compare(milliseconds(0));
  check_interrupted();
  if (!transport_.current()) return;
  if (auto lost = transport_.find_lost(due)) {
    if (transport_.move()) return;  // what it did last
    explain(*lost);
  }
  if (begin_ && Clock::now() >= *begin_ + line_.timeout && !transport_.awaited().empty()) fail_late();
}

void Watchdog::check_interrupted() {
  if (auto rank = transport_.find_interrupted(line_)) fail(interrupted_text(*rank));
}

Collective Watchdog::current() const {
  auto* call = transport_.current();
  return call ? *call : Collective();
}

// What the others wait in may say why nothing moves. `patience`: for those who have not posted it yet.
void Watchdog::compare(milliseconds patience) {
  if (!transport_.current() || !line_.board().exists()) return;
  auto call = current();
  auto awaited = line_.levels ? transport_.awaited() : std::vector<int64_t>();
  std::string text;
  {
    Asking asking(*this);
    text = ask_patiently(patience, [&] { return line_.compare(call, awaited); });
  }
  line_.error.rethrow();
  if (!text.empty()) fail(text);
}

// The header says what the other rank did, its entry on the board also why.
void Watchdog::explain(const UnexpectedMessage& message) {
  auto call = current();
  compare(kExplanation);
  call.number = call.whole.value_or(call.number);
  auto other = message.found ? message.found->text() : "another collective, of more bytes";
  fail(mismatch_text(call, line_.rank(), line_.ranks[message.member], other));
}

// It may have left because of us, or have been interrupted, or because of a third one.
void Watchdog::explain(const LostMember& lost) {
  try {
    transport_.move();  // a message that it sent before says more
  } catch (const UnexpectedMessage& message) {
    explain(message);
  }
  check_interrupted();
  auto& failures = line_.failures();
  auto call = current();
  std::string mismatch;
  if (transport_.current() && !lost.ended) {
    Asking asking(*this);
    mismatch = line_.compare_with(lost.member, call);
  }
  line_.error.rethrow();
  if (!mismatch.empty()) fail(mismatch);
  // Those who share a host with it may be about to post what they do, unless a rank is known to be gone.
  for (auto until = Clock::now() + kNeighbours; line_.levels && !lost.says_no_more && Clock::now() < until;) {
    if (failures.gone() || !failures.answers()) break;
    std::this_thread::sleep_for(2 * kLook);
    compare(milliseconds(0));
  }
  auto rank = line_.ranks[lost.member], first = rank;
  auto why = lost.why;
  {
    Asking asking(*this);
    auto patience = lost.says_no_more || !failures.answers() || failures.gone() ? milliseconds(0) : kTimeToTell;
    if (why.empty()) why = ask_patiently(patience, [&] { return failures.why(rank); });
    if (why.empty()) first = failures.first_gone(rank);
  }
  line_.error.rethrow();
  if (!why.empty()) fail(why);
  if (first == line_.rank()) first = rank;
  auto others = first == rank ? "" : c10::str("and then rank ", rank, ": ");
  // Who served the store may have left because of another one, and cannot tell any more.
  bool known = first != rank || failures.answers();
  auto gone = known ? std::vector<int64_t>{first} : transport_.unreachable(line_, lost.member);
  fail(gone_text(gone, others + lost.how) + (lost.left ? call.advice() : ""));
}

void Watchdog::fail_late() {
  auto late = transport_.late();
  auto call = current();
  std::string text;
  {
    Asking asking(*this);
    late = line_.behind(late, call);
    text = late_text(late, line_.timeout, line_.board().last_seen(late)) + call.advice();
    line_.failures().tell_why(line_.rank(), text);
  }
  line_.error.rethrow();
  fail(text);
}

void Watchdog::fail(const std::string& text) {
  transport_.give_up(text, Farewell::failed, text);
  report_failure();
  C10_THROW_ERROR(DistBackendError, text);
}

}  // namespace intarsia
