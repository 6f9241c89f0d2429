#pragma once
// Runs the collectives of all lines over one MPI.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "intarsia/comm/wait.h"
#include "intarsia/transport/mpi/mpi_endpoint.h"
#include "intarsia/watch/waiting.h"

namespace intarsia {

// Note [Who calls MPI]
// All calls of MPI are made under one lock. A thread that waits for a collective makes progress for all lines. If no
// thread waits, and other ranks may need our progress, our own thread makes it, if MPI allows calls from several
// threads, or only we call it. Otherwise progress is made only inside our calls, and with less than
// MPI_THREAD_SERIALIZED only one thread may make these.
class MpiProgressEngine {
 public:
  explicit MpiProgressEngine(std::shared_ptr<MpiPort> port);
  ~MpiProgressEngine();
  MpiProgressEngine(const MpiProgressEngine&) = delete;
  MpiProgressEngine& operator=(const MpiProgressEngine&) = delete;

  // Connects the members of a line, which all call it. The side comes without a line of MPI.
  void join(MpiEndpoint& side);
  // Ends the collectives in progress on it; no more can start.
  void leave(MpiEndpoint& side);

  // An empty task for the thread to fill.
  static std::shared_ptr<MpiTask> new_task();
  // Runs the task to its end.
  void finish(std::shared_ptr<MpiTask> task);
  // Starts it; the wait is empty if nothing is left to be done. Dropping a wait does not stop it.
  static Wait begin(const std::shared_ptr<MpiProgressEngine>& progress, std::shared_ptr<MpiTask> task);

 private:
  friend class Mover<MpiProgressEngine>;
  using Lock = std::unique_lock<std::mutex>;
  using Clock = std::chrono::steady_clock;
  using Tasks = std::vector<std::shared_ptr<MpiTask>>;
  struct Pending;
  class Waiting;

  // MPI does not wake anyone up. So a wait tests often at first, then lets others run between two tests, and after some
  // milliseconds sleeps for a small part of the time that it has waited.
  static constexpr int kTests = 100;

  void check_thread() const;
  void start(const std::shared_ptr<MpiTask>& task, bool waits);
  bool move_all();
  bool move(MpiTask& task);
  void drive(const std::shared_ptr<MpiTask>& task, Lock& lock);
  void rest(int turn, Clock::time_point since, Lock& lock);
  void give_up(MpiEndpoint& side, const std::string& text, Farewell farewell);
  void abandon(std::shared_ptr<MpiTask> task);
  void bury_abandoned();
  bool needs_server() const;
  void wake_server();
  void serve();

  std::shared_ptr<MpiPort> port_;
  int pid_;
  bool crowded_;      // more ranks on this host than cores
  bool may_serve_;    // our own thread may call MPI
  std::mutex mutex_;  // guards what follows, all sides, and calls of MPI
  std::condition_variable for_server_;
  Tasks under_way_;
  Tasks over_;       // to be freed without the lock: freeing may call into the program
  Tasks abandoned_;  // of lines that failed: MPI may still use their memory
  MpiMessages last_words_;
  int waiting_ = 0;       // threads that move messages themselves
  bool dropped_ = false;  // no thread waits for some of what is in progress
  bool stopping_ = false;
  std::unique_ptr<std::thread> server_;
};

}  // namespace intarsia
