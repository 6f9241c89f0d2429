#pragma once
// The command line of `intarsia run`.

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace intarsia::cli {

struct RunOptions {
  int64_t ranks = 0;  // on this host
  int64_t hosts = 1, host = 0;
  std::string meet;    // host:port of host 0, if there are several
  std::string secret;  // a file; empty: INTARSIA_SECRET
  bool prefix = true;
  std::string
      bind;  // address or interface of the ranks' connections; empty: loopback, on several hosts the way to host 0
  uint16_t port = 0;         // 0: a free one
  double timeout = 0;        // seconds for every wait of the ranks; 0: their default
  double grace = 10;         // seconds between SIGTERM and SIGKILL
  int64_t max_restarts = 0;  // how often the ranks are restarted when one has failed
  std::string engine;        // of the ranks; empty: their default
  std::string log_dir;       // empty: none
  bool help = false;
  std::vector<std::string> program;  // and its arguments
};

extern const char* const kRunHelp;

// A mistake in the command line. The text says what to write instead.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Options end at the first word that is not one: the program.
RunOptions parse_run(int argc, char** argv);

}  // namespace intarsia::cli
