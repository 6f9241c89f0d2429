#include "intarsia/launch/process.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

namespace intarsia {
namespace {

int open_process(int64_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)); }

// Tests divide one host into several: this many ranks on each.
std::string pretended_host(int64_t rank) {
  auto* text = getenv("INTARSIA_TEST_HOSTS");
  auto each = text ? std::atoll(text) : 0;
  return each > 0 ? " as host " + std::to_string(rank / each) : "";
}

std::string boot_id(int64_t rank) {
  std::string text;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), text);
  return text + pretended_host(rank);
}

std::string process_namespace() {
  char text[64] = "";
  auto length = readlink("/proc/self/ns/pid", text, sizeof text - 1);
  return length > 0 ? std::string(text, length) : "";
}

}  // namespace

Host host_of(int64_t rank) { return {boot_id(rank), process_namespace()}; }

Process::Process(int64_t pid) : pid_(pid), fd_(open_process(pid)), gone_(fd_ < 0) {}
Process::~Process() {
  if (fd_ >= 0) close(fd_);
}
Process::Process(Process&& other) noexcept : pid_(other.pid_), fd_(std::exchange(other.fd_, -1)), gone_(other.gone_) {}
Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(fd_, other.fd_);
  std::swap(gone_, other.gone_);
  return *this;
}

bool Process::ended() const {
  pollfd about{fd_, POLLIN, 0};
  return gone_ || (fd_ >= 0 && poll(&about, 1, 0) > 0);
}

// "1234 (name) T ...": the name may contain anything.
bool Process::stopped() const {
  if (fd_ < 0 || ended()) return false;
  std::string text;
  std::getline(std::ifstream(c10::str("/proc/", pid_, "/stat")), text);
  auto state = text.rfind(") ");
  return state != std::string::npos && (text[state + 2] == 'T' || text[state + 2] == 't');
}

void check_processes_can_be_watched() {
  int self = open_process(getpid());
  TORCH_CHECK(self >= 0, "cannot watch other processes: ", std::strerror(errno));
  close(self);
}

}  // namespace intarsia
