#pragma once
// Runs the collectives of one line in shared memory, in order.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "intarsia/comm/wait.h"
#include "intarsia/transport/shm/attach.h"
#include "intarsia/transport/shm/steps.h"
#include "intarsia/watch/waiting.h"
#include "intarsia/watch/watchdog.h"

namespace intarsia {

// A line whose members share memory, seen from one of them.
struct ShmLine {
  std::shared_ptr<WatchedLine> watched;
  std::shared_ptr<Segment> segment;
  std::vector<Process> processes;  // of the members; ours is none
};

// Note [Who moves bytes]
// A thread that waits for a collective moves the bytes of all collectives of its line that are under way. If nobody
// waits, and others need bytes of ours that found no room in the rings, or have more for us than the rings hold, a
// thread of our own does it. So what is under way goes on by itself, and a collective that is waited for at once needs
// no other thread.
class ShmProgressEngine final : private WaitingTransport {
 public:
  explicit ShmProgressEngine(ShmLine line);
  ~ShmProgressEngine() override { close(); }
  ShmProgressEngine(const ShmProgressEngine&) = delete;
  ShmProgressEngine& operator=(const ShmProgressEngine&) = delete;

  // For a line that is a part of a larger one. What happened there is the error of all members here.
  void give_up_because(const std::string& why, Farewell farewell);
  // The rank of another host for which we wait before we go on here; -1: none.
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
  struct Pending;

  WatchedLine& line() const { return *line_.watched; }
  MemberRecord& me() const { return line_.segment->member(line().position); }
  void add(Task& task, bool waits);
  bool move_all();
  void drive(const Task& task, Lock& lock);
  void sleep(Lock& lock);

  const Collective* current() const override;
  std::vector<int64_t> awaited() override;
  bool move() override { return move_all(); }
  std::optional<LostMember> find_lost(bool rarely) override;
  std::optional<int64_t> find_interrupted(const WatchedLine& line) override;
  void give_up(const std::string& text, Farewell farewell, const std::string& said) override;

  bool needs_server() const;
  void wake_server();
  void serve();

  ShmLine line_;
  int pid_;
  bool crowded_;      // more members than cores
  std::mutex mutex_;  // guards what follows, and the rings
  std::condition_variable for_server_;
  std::deque<Task*> under_way_;
  std::vector<std::shared_ptr<Task>> over_;  // to be freed without the lock: freeing may call the program around us
  int waiting_ = 0;                          // threads that move bytes themselves
  bool dropped_ = false;                     // nobody waits for some of what is under way
  bool stopping_ = false;
  std::unique_ptr<std::thread> server_;
};

}  // namespace intarsia
