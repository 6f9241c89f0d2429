#include "intarsia/checkpoint/progress.h"

#include <unistd.h>

#include <cstdio>

namespace intarsia::checkpoint {

using std::chrono::duration;
using std::chrono::steady_clock;

Progress::Progress(std::string what, int64_t total, ProgressFn told, bool speaks)
    : what_(std::move(what)),
      total_(total),
      told_(std::move(told)),
      speaks_(speaks),
      terminal_(::isatty(2)),
      start_(steady_clock::now()),
      last_(start_) {}

Progress::~Progress() {
  if (said_ && terminal_) std::fprintf(stderr, "\n");
}

void Progress::add(int64_t bytes) {
  done_ += bytes;
  if (told_) told_(done_, total_);
  if (!speaks_) return;
  auto now = steady_clock::now();
  if (duration<double>(now - start_).count() < 2 ||
      duration<double>(now - last_).count() < (terminal_ || !said_ ? 1 : 10))
    return;
  last_ = now;
  say(duration<double>(now - start_).count());
}

void Progress::say(double seconds) {
  said_ = true;
  std::fprintf(stderr, "%s%s: %.0f %% of %.1f MB, %.0f MB/s%s", terminal_ ? "\r" : "", what_.c_str(),
               total_ ? 100.0 * done_ / total_ : 100.0, total_ / 1e6, done_ / seconds / 1e6, terminal_ ? "  " : "\n");
  std::fflush(stderr);
}

}  // namespace intarsia::checkpoint
