#pragma once
// One rank: a process with its own process group, whose output comes through pipes.

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/output.h"

namespace intarsia::cli {

struct Child {
  int64_t rank;
  pid_t pid = -1;
  bool running = false;
  int status = 0;  // from waitpid, once it has ended
  int log = -1;
  std::unique_ptr<LineForwarder> out, err;
};

using Variables = std::map<std::string, std::string>;

// Starts `program` with our environment and `variables`. If the launcher dies, however it dies, the rank is killed. A
// program that cannot be started ends with status 127 (not found) or 126, and says why on its stderr. `restarted`:
// appends to its log.
Child start_child(int64_t rank, const std::vector<std::string>& program, const Variables& variables, bool prefix,
                  const std::string& log_dir, bool restarted);

std::string signal_text(int signal);  // signal 9 (SIGKILL)
std::string describe(int status);     // "ended with status 3", "was killed by signal 9 (SIGKILL)"
int exit_code_of(int status);         // the status, or 128 + signal

}  // namespace intarsia::cli
