#pragma once
// Folds lines that several ranks write to stderr at about the same time into one: [0-3] Warning: ...

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace intarsia::cli {

class Folding {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kHeld{200};

  // Adds a line with its newline. It is held for a moment, since other ranks may be about to write the same.
  void add(int64_t rank, std::string line, Clock::time_point now = Clock::now());

  // The lines that have been held long enough, in order, each marked with its ranks. `all`: the rest as well.
  std::string take(Clock::time_point now, bool all = false);
  std::optional<Clock::time_point> due() const;  // when the next lines are due

 private:
  struct Line {
    std::string text;
    std::vector<int64_t> ranks;
    Clock::time_point since;
  };
  std::deque<Line> held_;
};

std::string ranks_text(std::vector<int64_t> ranks);  // 0-2,5

// What the ranks of this launcher write to stderr.
Folding& errors_of_ranks();
void show_errors(bool all = false);

}  // namespace intarsia::cli
