#pragma once
// The host that a rank runs on, and the other processes there.

#include <cstdint>
#include <string>

namespace intarsia {

// A kernel and a process namespace: processes of one host see each other's files and exits.
struct Host {
  std::string boot, processes;
  std::string text() const { return boot + " " + processes; }
};
Host host_of(
    int64_t rank);  // this host; `rank` is ours, for tests that divide one host into several (INTARSIA_TEST_HOSTS)

// Another process of this host, whose end can be seen.
class Process {
 public:
  Process() = default;  // none: never ends
  explicit Process(int64_t pid);
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  bool ended() const;
  bool stopped() const;  // by a signal or a debugger

 private:
  int64_t pid_ = 0;
  int fd_ = -1;
  bool gone_ = false;  // before we could look
};

// Raises an error that says why the end of other processes cannot be seen here, if so.
void check_processes_can_be_watched();

}  // namespace intarsia
