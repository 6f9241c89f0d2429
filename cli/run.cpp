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
#include "cli/folding.h"
#include "cli/hosts.h"
#include "cli/options.h"
#include "intarsia/comm/interrupts.h"

namespace intarsia::cli {
namespace {

using Clock = std::chrono::steady_clock;

// How long the other ranks may take to end on their own when one has failed: their errors say what they were doing.
constexpr std::chrono::milliseconds kLastWords{1000};

// Blocks the signals that we handle in all threads and makes them readable.
int open_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

// While we wait for other hosts the signals are blocked, and not yet read.
void throw_if_signalled() {
  sigset_t pending;
  if (sigpending(&pending) != 0) return;
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (sigismember(&pending, signal)) throw UsageError("[run] stopped by " + signal_text(signal) + ".");
  }
}
const Interrupts kSignals{throw_if_signalled, [] {}, [](const std::exception_ptr&) { return false; }};

Variables variables_of(const RunOptions& options, const Hosts& hosts, int64_t local_rank, int64_t restarts) {
  // Two hosts use the same name for the job, and two runs on one host different ones.
  auto job = "intarsia-" + (options.hosts > 1 ? options.meet : std::to_string(getpid()));
  Variables variables = {
      {"RANK", std::to_string(options.host * options.ranks + local_rank)},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"GROUP_RANK", std::to_string(options.host)},
      {"WORLD_SIZE", std::to_string(options.hosts * options.ranks)},
      {"LOCAL_WORLD_SIZE", std::to_string(options.ranks)},
      {"MASTER_ADDR", hosts.store_address()},
      {"MASTER_PORT", std::to_string(hosts.store_port())},
      {"INTARSIA_INTERFACE", hosts.interface()},
      {"INTARSIA_SECRET", hosts.secret()},
      // We serve the store, as torchrun does: no rank has to get a port or to stay until the others have ended.
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_RUN_ID", job},
      {"INTARSIA_RUN_ID", job},  // so that errors name us
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(restarts)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts)},
  };
  if (!getenv("OMP_NUM_THREADS")) variables["OMP_NUM_THREADS"] = "1";
  if (options.timeout) variables["INTARSIA_TIMEOUT"] = std::to_string(static_cast<int64_t>(options.timeout));
  if (!options.engine.empty()) variables["INTARSIA_ENGINE"] = options.engine;
  return variables;
}

// Of several ranks that ended at about the same time, the one that was killed is the cause. A C++ program that did not
// catch the error of a collective ends with SIGABRT, so that is more likely a consequence.
int blame(int status) { return WIFSIGNALED(status) && WTERMSIG(status) != SIGABRT ? 2 : status != 0; }

class Run {
 public:
  explicit Run(const RunOptions& options) : options_(options), hosts_(options) {}

  ~Run() {
    drop_children();
    if (signals_ >= 0) close(signals_);
  }

  // Runs the program, and again if it fails and may be restarted. Returns the last status.
  int stand_by() {
    while (true) {
      start_and_wait();
      auto status = report();
      if (!status || is_stopped_) return status;
      if (restarts_ == options_.max_restarts) {
        if (restarts_) std::fprintf(stderr, "[run] no restart is left of %lld.\n", static_cast<long long>(restarts_));
        return status;
      }
      std::fprintf(stderr, "[run] restart %lld of %lld.\n", static_cast<long long>(++restarts_),
                   static_cast<long long>(options_.max_restarts));
      drop_children();
      culprit_.reset(), stop_at_.reset(), kill_at_.reset();
      failed_ = false;
      hosts_.restart(restarts_);
    }
  }

 private:
  void start_and_wait() {
    for (int64_t local = 0; local < options_.ranks; ++local) {
      children_.push_back(start_child(options_.host * options_.ranks + local, options_.program,
                                      variables_of(options_, hosts_, local, restarts_), options_.prefix,
                                      options_.log_dir, restarts_ > 0));
    }
    while (running()) {
      wait_for_something();
      forward_output();
      take_signals();
      look_at_other_hosts();
      keep_times();
    }
    forward_output();
    for (auto& child : children_) child.out->finish(), child.err->finish();
    show_errors(true);
  }

  void drop_children() {
    send_to_all(SIGKILL);  // if we leave by an error
    for (auto& child : children_) {
      if (child.running) waitpid(child.pid, nullptr, 0);
      if (child.log >= 0) close(child.log);
    }
    children_.clear();
  }

  bool running() const {
    return std::any_of(children_.begin(), children_.end(), [](auto& child) { return child.running; });
  }

  void send_to_all(int signal) {
    for (auto& child : children_) {
      if (child.running) kill(-child.pid, signal);
    }
  }

  // Kills ranks that do not stop when asked.
  void give_grace() {
    if (!kill_at_) kill_at_ = Clock::now() + std::chrono::microseconds(static_cast<int64_t>(options_.grace * 1e6));
  }

  void keep_times() {
    if (stop_at_ && Clock::now() >= *stop_at_) {
      stop_at_.reset();
      send_to_all(SIGTERM);
      send_to_all(SIGCONT);  // a stopped rank only gets SIGTERM when it is continued
      give_grace();
    }
    if (kill_at_ && Clock::now() >= *kill_at_) {
      send_to_all(SIGKILL);
      kill_at_ = Clock::time_point::max();
    }
  }

  void look_at_other_hosts() {
    if (failed_ || !hosts_.failure_elsewhere()) return;
    failed_ = true;
    stop_at_ = Clock::now() + kLastWords;
  }

  void wait_for_something() {
    std::vector<pollfd> fds = {{signals_, POLLIN, 0}};
    for (auto& child : children_) {
      for (auto* stream : {child.out.get(), child.err.get()}) {
        if (stream->fd() >= 0) fds.push_back({stream->fd(), POLLIN, 0});
      }
    }
    auto until = std::min(stop_at_.value_or(Clock::time_point::max()), kill_at_.value_or(Clock::time_point::max()));
    if (options_.hosts > 1) until = std::min(until, Clock::now() + kLastWords);
    until = std::min(until, errors_of_ranks().due().value_or(until));
    auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    poll(fds.data(), fds.size(), until == Clock::time_point::max() ? -1 : std::max<int64_t>(0, left));
  }

  void forward_output() {
    for (auto& child : children_) child.out->forward(), child.err->forward();
    show_errors();
  }

  void take_signals() {
    signalfd_siginfo info;
    while (read(signals_, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGCHLD) {
        reap();
        continue;
      }
      send_to_all(info.ssi_signo);
      if (info.ssi_signo == SIGHUP || info.ssi_signo == SIGUSR1) continue;  // these do not always end a program
      is_stopped_ = true;
      if (!culprit_) told_to_stop_ = info.ssi_signo;
      hosts_.tell({"host " + std::to_string(options_.host) + " was stopped by " + signal_text(told_to_stop_),
                   128 + told_to_stop_, true});
      give_grace();
    }
  }

  void reap() {
    bool failed = false;
    siginfo_t ended{};
    while (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid) {
      kill(-ended.si_pid, SIGKILL);  // processes that the rank has left; until we reap it the number stays its own
      int status = 0;
      waitpid(ended.si_pid, &status, 0);
      auto child = std::find_if(children_.begin(), children_.end(), [&](auto& c) { return c.pid == ended.si_pid; });
      ended = {};
      if (child == children_.end()) continue;
      child->running = false;
      child->status = status;
      if (!status) continue;
      failed = true;
      is_stopped_ = is_stopped_ || (WIFSIGNALED(status) && WTERMSIG(status) == SIGHUP);
      size_t index = child - children_.begin();
      if (!culprit_ || (!failed_ && blame(status) > blame(children_[*culprit_].status))) culprit_ = index;
    }
    if (failed && !failed_) {
      stop_at_ = Clock::now() + kLastWords;
      auto& child = children_[*culprit_];
      hosts_.tell({"rank " + std::to_string(child.rank) + " on host " + std::to_string(options_.host) + " " +
                       describe(child.status),
                   exit_code_of(child.status), is_stopped_});
    }
    failed_ = failed_ || failed;
  }

  int report() {
    if (auto failure = hosts_.leave(!culprit_ && !failed_)) {
      std::fprintf(stderr, "[run] %s; the ranks of this host were stopped.\n", failure->text.c_str());
      is_stopped_ = is_stopped_ || failure->final;
      return failure->code;
    }
    if (!culprit_) return 0;
    if (told_to_stop_) {
      std::fprintf(stderr, "[run] stopped by %s.\n", signal_text(told_to_stop_).c_str());
      return 128 + told_to_stop_;
    }
    auto& child = children_[*culprit_];
    std::fprintf(stderr, "[run] rank %lld %s%s.\n", static_cast<long long>(child.rank), describe(child.status).c_str(),
                 children_.size() > 1 ? "; the others were stopped" : "");
    return exit_code_of(child.status);
  }

  const RunOptions& options_;
  int signals_ = open_signals();  // before there is any other thread, which would take them
  Hosts hosts_;
  std::vector<Child> children_;
  int64_t restarts_ = 0;                      // so far
  bool is_stopped_ = false;                   // the run was stopped, here or on another host: no restart follows
  int told_to_stop_ = 0;                      // the signal that we got before any rank failed
  std::optional<size_t> culprit_;             // the child that failed first
  bool failed_ = false;                       // a rank has failed, so the others must stop
  std::optional<Clock::time_point> stop_at_;  // when they are asked to
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
  set_interrupts(&kSignals);
  int status = 0;
  try {
    with_interrupts([&] { status = Run(options).stand_by(); });
  } catch (const UsageError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return status;
}

}  // namespace intarsia::cli
