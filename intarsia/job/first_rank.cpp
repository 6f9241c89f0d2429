#include "intarsia/job/first_rank.h"

#include <cstdio>
#include <cstdlib>

#include "intarsia/core/world.h"
#include "intarsia/launch/launcher_environment.h"

namespace intarsia {
namespace {

// In one call, so that lines of threads do not mix, and a killed process has written its last one.
void put_line(std::string line) {
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

bool is_first_rank(const char* where) { return current_world(where).hosted().front() == 0; }

int64_t restart_count() {
  return read_number([](const char* name) { return std::getenv(name); }, "TORCHELASTIC_RESTART_COUNT").value_or(0);
}

void print_line_once(const std::string& line) {
  if (is_first_rank("print_once")) put_line(line);
}

void print_line_with_rank(const std::string& line) {
  auto& world = current_world("print_with_rank");
  auto& hosted = world.hosted();
  auto ranks = c10::str("rank ", hosted[0]);
  if (hosted.size() > 1) ranks = c10::str("ranks ", hosted.front(), " to ", hosted.back());
  put_line(c10::str("[", ranks, " of ", world.size(), "] ", line));
}

}  // namespace intarsia
