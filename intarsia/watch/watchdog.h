#pragma once
// What a wait for other ranks does when nothing comes, over every transport.

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/FunctionRef.h>

#include "intarsia/watch/member_faults.h"
#include "intarsia/watch/watched_line.h"

namespace intarsia {

// What only the transport knows of a line on which somebody waits. Called under the transport's lock, if it has one.
class WaitingTransport {
 public:
  virtual ~WaitingTransport() = default;

  // The collective that holds up the wait; null: none does any more.
  virtual const Collective* current() const = 0;
  // The ranks for whose part in it we wait.
  virtual std::vector<int64_t> awaited() = 0;
  // The same when their time is over.
  virtual std::vector<int64_t> late() { return awaited(); }
  // Moves what can be moved now: what a member that is gone did last. Returns whether anything moved.
  virtual bool move() { return false; }
  // A member for whom we wait and who takes no part any more, as far as that is known without a message of it.
  // `rarely`: it may cost a question to a store.
  virtual std::optional<LostMember> find_lost([[maybe_unused]] bool rarely) { return std::nullopt; }
  // A rank that was interrupted; by default as the board of failures says.
  virtual std::optional<int64_t> find_interrupted(const WatchedLine& line);
  // The ranks to which there is no connection, where nobody else can say who is gone; `member` is one of them.
  virtual std::vector<int64_t> unreachable(const WatchedLine& line, int64_t member) { return {line.ranks[member]}; }

  // The line fails with `text` from now on: sets its error, ends what is under way, and lets the other members know.
  // `said`: what they are to say, if we failed; empty: what they see themselves.
  virtual void give_up(const std::string& text, Farewell farewell, const std::string& said) = 0;
};

// Note [A wait that finds out why]
// While nothing comes, a wait looks around about twenty times a second: whether the program around us wants to stop,
// whether a rank was interrupted or is gone, ever more rarely whether the others wait in another collective, and
// whether the time is over. What it finds ends the line: it is the error of this and all later collectives on it, and
// is posted where the others look. A transport brings a function that moves bytes, and what it alone can see of its
// members (WaitingTransport).
class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  // `lock`: the transport's, held; left while a store is asked. Null: it has none.
  Watchdog(WatchedLine& line, WaitingTransport& transport, Lock* lock = nullptr)
      : line_(line), transport_(transport), lock_(lock) {}
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // When the time of the others began; empty: it does not run yet. By default with the first look.
  void set_begin(std::optional<Clock::time_point> begin);

  // Runs a wait, which calls look() while nothing comes. Whatever ends it other than well gives up the line.
  void run(c10::function_ref<void()> wait);

  // To be called often: does nothing until the next look is due.
  void look();

  // The time is over.
  [[noreturn]] void fail_late();
  [[noreturn]] void fail(const std::string& text);

 private:
  class Asking;
  void look_around();
  void check_interrupted();
  void compare(std::chrono::milliseconds patience);
  [[noreturn]] void explain(const UnexpectedMessage& message);
  [[noreturn]] void explain(const LostMember& lost);
  Collective current() const;

  WatchedLine& line_;
  WaitingTransport& transport_;
  Lock* lock_;
  std::optional<BoardTimes> times_;  // none before the first look
  bool has_begin_ = false;
  std::optional<Clock::time_point> begin_;
  Clock::time_point next_look_{};
};

}  // namespace intarsia
