#pragma once
// Runs the collectives of one line in shared memory, in order.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "intarsia/comm/wait.h"
#include "intarsia/transport/shm/attach.h"
#include "intarsia/transport/shm/steps.h"
#include "intarsia/watch/collective_board.h"
#include "intarsia/watch/failure_board.h"
#include "intarsia/watch/sticky_error.h"
#include "intarsia/watch/waiting.h"

namespace intarsia {

struct RecordedLine;

// A line whose members share memory, as one of them sees it.
struct ShmLine {
  std::vector<int64_t> ranks;  // of the world, in the order of the line
  int64_t position;            // our own
  std::shared_ptr<Segment> segment;
  std::vector<Process> processes;
  std::chrono::milliseconds timeout;
  std::shared_ptr<FailureBoard> failures;              // null if there is no store
  std::shared_ptr<CollectiveBoard> board;              // the same
  std::shared_ptr<const LargerLine> larger = nullptr;  // of which this is a part, and a board for both; null: none
};

// Note [Who moves bytes]
// A thread that waits for a collective moves the bytes of all collectives in progress on its line. If no thread waits,
// and others need bytes of ours that found no room in the rings, or have more for us than the rings hold, our own
// thread does it. So asynchronous collectives make progress, and a collective with an immediate wait needs no other
// thread.
class ShmProgressEngine {
 public:
  explicit ShmProgressEngine(ShmLine line);
  ~ShmProgressEngine() { close(); }
  ShmProgressEngine(const ShmProgressEngine&) = delete;
  ShmProgressEngine& operator=(const ShmProgressEngine&) = delete;

  // For a line that is a part of a larger one: makes an error there the error of all members here.
  void give_up_because(const std::string& why, MemberRecord::State state);
  // Sets the rank of another host for which we wait before we continue here; -1: none.
  void tell_awaited(int64_t rank) { me().awaits = rank; }

  // Leaves the line: collectives in progress end, and no more can start. Call it before the rings are freed.
  void close();

  // Runs the task to its end.
  void finish(Task& task);
  // Starts it; the wait is empty if nothing is left to be done. Dropping a wait does not stop it.
  static Wait begin(const std::shared_ptr<ShmProgressEngine>& progress, std::shared_ptr<Task> task);

 private:
  friend class Mover<ShmProgressEngine>;
  using Lock = std::unique_lock<std::mutex>;
  using Clock = std::chrono::steady_clock;
  struct Pending;

  MemberRecord& me() const { return line_.segment->member(line_.position); }
  void add(Task& task, bool waits);
  bool move_all();
  void drive(const Task& task, Lock& lock);
  void sleep(Lock& lock);
  void look_around(Lock& lock, Clock::time_point deadline);
  void compare_boards(Lock& lock, std::chrono::milliseconds patience);
  [[noreturn]] void explain(Lock& lock, const WrongMessage& wrong);
  std::vector<int64_t> awaited() const;
  void look_for_gone(Lock& lock, const std::vector<int64_t>& missing);
  [[noreturn]] void fail(const std::string& text);
  // `told`: the text that the others report, if we have failed; empty: what they see themselves.
  void give_up(const std::string& text, MemberRecord::State state, const std::string& told = {});
  void give_up_after(const std::exception& error);
  bool needs_server() const;
  void wake_server();
  void serve();

  ShmLine line_;
  int pid_;
  bool crowded_;      // more members than cores
  std::mutex mutex_;  // guards what follows, and the rings
  std::condition_variable for_server_;
  std::deque<Task*> under_way_;
  std::vector<std::shared_ptr<Task>> over_;  // to be freed without the lock: freeing may call into the program
  uint64_t next_number_ = 0;
  History history_;
  const RecordedLine* flights_;
  int waiting_ = 0;       // threads that move bytes themselves
  bool dropped_ = false;  // no thread waits for some of what is in progress
  bool stopping_ = false;
  StickyError error_;
  std::unique_ptr<std::thread> server_;
};

}  // namespace intarsia
