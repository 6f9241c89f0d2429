#pragma once
// The command line of `intarsia run`.

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace intarsia::cli {

struct RunOptions {
  int64_t ranks = 0;
  bool prefix = true;
  std::string bind = "127.0.0.1";
  uint16_t port = 0;      // 0: a free one
  double timeout = 0;     // seconds for every wait of the ranks; 0: their default
  double grace = 10;      // seconds between SIGTERM and SIGKILL
  std::string engine;     // of the ranks; empty: their default
  std::string log_dir;    // empty: none
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
