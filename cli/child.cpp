#include "cli/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

extern char** environ;

namespace intarsia::cli {
namespace {

// What exec needs, prepared before the fork: after it, a process with threads may not allocate.
struct Image {
  std::vector<std::string> words;
  std::vector<char*> argv, envp;

  Image(const std::vector<std::string>& program, Variables variables) : words(program) {
    for (auto** entry = environ; *entry; ++entry) {
      auto* equals = std::strchr(*entry, '=');
      if (equals) variables.emplace(std::string(*entry, equals), equals + 1);  // ours come first
    }
    for (auto& [name, value] : variables) words.push_back(name + "=" + value);
    for (size_t i = 0; i < words.size(); ++i) (i < program.size() ? argv : envp).push_back(words[i].data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
  }
};

// Runs in the child. Only calls that are safe after a fork.
[[noreturn]] void become(const Image& image, pid_t launcher, int in, int out, int err) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(125);  // it died before prctl took effect
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (in >= 0) dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  execvpe(image.argv[0], image.argv.data(), image.envp.data());
  const char* parts[] = {"[run] cannot start ", image.argv[0], ": ", std::strerror(errno), ".\n"};
  int code = errno == ENOENT ? 127 : 126;
  for (auto* part : parts) {
    if (write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  }
  _exit(code);
}

struct Pipe {
  int read, write;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) throw std::runtime_error(std::string("[run] no pipe: ") + std::strerror(errno) + ".");
    read = ends[0];
    write = ends[1];
  }
};

int open_log(const std::string& dir, int64_t rank, bool restarted) {
  if (dir.empty()) return -1;
  mkdir(dir.c_str(), 0777);
  auto path = dir + "/" + std::to_string(rank) + ".log";
  int fd = open(path.c_str(), O_WRONLY | O_CREAT | (restarted ? 0 : O_TRUNC) | O_APPEND | O_CLOEXEC, 0666);
  if (fd >= 0) return fd;
  throw std::runtime_error("[run] cannot write " + path + ": " + std::strerror(errno) + ". Check --log-dir.");
}

// Rank 0 reads our input. We keep a terminal: a rank in the background may not read it.
int input_for(int64_t rank) {
  if (rank == 0 && !isatty(STDIN_FILENO)) return -1;
  return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

}  // namespace

Child start_child(int64_t rank, const std::vector<std::string>& program, const Variables& variables, bool prefix,
                  const std::string& log_dir, bool restarted) {
  Child child{rank};
  Image image(program, variables);
  child.log = open_log(log_dir, rank, restarted);
  Pipe out, err;
  int in = input_for(rank);
  auto launcher = getpid();
  child.pid = fork();
  if (child.pid < 0) throw std::runtime_error(std::string("[run] cannot fork: ") + std::strerror(errno) + ".");
  if (child.pid == 0) become(image, launcher, in, out.write, err.write);
  setpgid(child.pid, child.pid);  // both sides do it, so that neither runs too early
  child.running = true;
  if (in >= 0) close(in);
  close(out.write);
  close(err.write);
  child.out = std::make_unique<LineForwarder>(
      out.read, prefix ? marked(STDOUT_FILENO, rank) : as_they_are(STDOUT_FILENO), child.log);
  child.err = std::make_unique<LineForwarder>(err.read, prefix ? folded(rank) : as_they_are(STDERR_FILENO), child.log);
  return child;
}

std::string signal_text(int signal) {
  static const std::map<int, const char*> names = {
      {SIGABRT, "SIGABRT"}, {SIGALRM, "SIGALRM"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},   {SIGHUP, "SIGHUP"},
      {SIGILL, "SIGILL"},   {SIGINT, "SIGINT"},   {SIGKILL, "SIGKILL"}, {SIGPIPE, "SIGPIPE"}, {SIGQUIT, "SIGQUIT"},
      {SIGSEGV, "SIGSEGV"}, {SIGSYS, "SIGSYS"},   {SIGTERM, "SIGTERM"}, {SIGTRAP, "SIGTRAP"}, {SIGUSR1, "SIGUSR1"},
      {SIGUSR2, "SIGUSR2"}, {SIGXCPU, "SIGXCPU"}, {SIGXFSZ, "SIGXFSZ"},
  };
  auto name = names.find(signal);
  auto text = "signal " + std::to_string(signal);
  return name == names.end() ? text : text + " (" + name->second + ")";
}

std::string describe(int status) {
  if (WIFEXITED(status)) return "ended with status " + std::to_string(WEXITSTATUS(status));
  return "was killed by " + signal_text(WTERMSIG(status));
}

int exit_code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

}  // namespace intarsia::cli
