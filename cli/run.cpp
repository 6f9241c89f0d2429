#include "cli/run.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "cli/child.h"
#include "cli/options.h"
#include "intarsia/comm/launch/rendezvous.h"

namespace intarsia::cli {
namespace {

using Clock = std::chrono::steady_clock;

// How long the other ranks may take to end by themselves when one has failed: their errors say what they were doing.
constexpr std::chrono::milliseconds kLastWords{500};

// Blocks the signals we live by in all threads and makes them readable.
int open_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

Variables variables_of(const RunOptions& options, int64_t rank, uint16_t port) {
  auto size = std::to_string(options.ranks);
  Variables variables = {
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"GROUP_RANK", "0"},
      {"WORLD_SIZE", size},
      {"LOCAL_WORLD_SIZE", size},
      {"MASTER_ADDR", options.bind},
      {"MASTER_PORT", std::to_string(port)},
      {"INTARSIA_INTERFACE", options.bind},
      // We serve the store, as torchrun does: no rank has to win a port or to stay until the others are done.
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_RUN_ID", "intarsia-" + std::to_string(getpid())},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
  };
  if (!getenv("OMP_NUM_THREADS")) variables["OMP_NUM_THREADS"] = "1";
  if (options.timeout) variables["INTARSIA_TIMEOUT"] = std::to_string(static_cast<int64_t>(options.timeout));
  if (!options.engine.empty()) variables["INTARSIA_ENGINE"] = options.engine;
  return variables;
}

// Of several ranks that ended at about the same time the one that was killed is the cause. SIGABRT is how a C++ program
// ends that did not catch the error of a collective, so it is more likely a consequence.
int blame(int status) { return WIFSIGNALED(status) && WTERMSIG(status) != SIGABRT ? 2 : status != 0; }

class Run {
 public:
  explicit Run(const RunOptions& options) : options_(options) {}

  ~Run() {
    send_to_all(SIGKILL);  // if we leave by an error
    for (auto& child : children_) {
      if (child.running) waitpid(child.pid, nullptr, 0);
      if (child.log >= 0) close(child.log);
    }
    if (signals_ >= 0) close(signals_);
  }

  int stand_by() {
    signals_ = open_signals();
    auto served = serve_store(options_.bind, options_.port, std::chrono::minutes(5));
    for (int64_t rank = 0; rank < options_.ranks; ++rank) {
      children_.push_back(start_child(rank, options_.program, variables_of(options_, rank, served.port),
                                      options_.prefix, options_.log_dir));
    }
    while (running()) {
      wait_for_something();
      forward_output();
      take_signals();
      keep_times();
    }
    forward_output();
    for (auto& child : children_) child.out->finish(), child.err->finish();
    return report();
  }

 private:
  bool running() const {
    return std::any_of(children_.begin(), children_.end(), [](auto& child) { return child.running; });
  }

  void send_to_all(int signal) {
    for (auto& child : children_) {
      if (child.running) kill(-child.pid, signal);
    }
  }

  // Those that do not listen when told to stop are killed.
  void give_grace() {
    if (!kill_at_) kill_at_ = Clock::now() + std::chrono::microseconds(static_cast<int64_t>(options_.grace * 1e6));
  }

  void keep_times() {
    if (stop_at_ && Clock::now() >= *stop_at_) {
      stop_at_.reset();
      send_to_all(SIGTERM);
      send_to_all(SIGCONT);  // a stopped rank hears the first only if it is continued
      give_grace();
    }
    if (kill_at_ && Clock::now() >= *kill_at_) {
      send_to_all(SIGKILL);
      kill_at_ = Clock::time_point::max();
    }
  }

  void wait_for_something() {
    std::vector<pollfd> fds = {{signals_, POLLIN, 0}};
    for (auto& child : children_) {
      for (auto* stream : {child.out.get(), child.err.get()}) {
        if (stream->fd() >= 0) fds.push_back({stream->fd(), POLLIN, 0});
      }
    }
    auto until = std::min(stop_at_.value_or(Clock::time_point::max()), kill_at_.value_or(Clock::time_point::max()));
    auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    poll(fds.data(), fds.size(), until == Clock::time_point::max() ? -1 : std::max<int64_t>(0, left));
  }

  void forward_output() {
    for (auto& child : children_) child.out->forward(), child.err->forward();
  }

  void take_signals() {
    signalfd_siginfo info;
    while (read(signals_, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGCHLD) {
        reap();
        continue;
      }
      send_to_all(info.ssi_signo);
      if (info.ssi_signo == SIGHUP) continue;  // not always meant to end a program
      if (!culprit_) told_to_stop_ = info.ssi_signo;
      give_grace();
    }
  }

  void reap() {
    bool failed = false;
    siginfo_t ended{};
    while (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid) {
      kill(-ended.si_pid, SIGKILL);  // what the rank has left behind; until we reap it the number is its own
      int status = 0;
      waitpid(ended.si_pid, &status, 0);
      auto child = std::find_if(children_.begin(), children_.end(), [&](auto& c) { return c.pid == ended.si_pid; });
      ended = {};
      if (child == children_.end()) continue;
      child->running = false;
      child->status = status;
      if (!status) continue;
      failed = true;
      if (!culprit_ || (!failed_ && blame(status) > blame(children_[*culprit_].status))) culprit_ = child->rank;
    }
    if (failed && !failed_) stop_at_ = Clock::now() + kLastWords;
    failed_ = failed_ || failed;
  }

  int report() const {
    if (!culprit_) return 0;
    if (told_to_stop_) {
      std::fprintf(stderr, "[run] stopped by %s.\n", signal_text(told_to_stop_).c_str());
      return 128 + told_to_stop_;
    }
    auto& child = children_[*culprit_];
    std::fprintf(stderr, "[run] rank %lld %s%s.\n", static_cast<long long>(child.rank),
                 describe(child.status).c_str(), children_.size() > 1 ? "; the others were stopped" : "");
    return exit_code_of(child.status);
  }

  const RunOptions& options_;
  std::vector<Child> children_;
  int signals_ = -1;
  int told_to_stop_ = 0;                      // the signal that we got before any rank failed
  std::optional<int64_t> culprit_;            // the rank that failed first
  bool failed_ = false;                       // a rank has failed, so the others must stop
  std::optional<Clock::time_point> stop_at_;  // when they are told
  std::optional<Clock::time_point> kill_at_;  // and when they are killed
};

}  // namespace

int run_main(int argc, char** argv) {
  RunOptions options;
  try {
    options = parse_run(argc, argv);
  } catch (const UsageError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  if (options.help) return std::fputs(kRunHelp, stdout), 0;
  return Run(options).stand_by();
}

}  // namespace intarsia::cli
