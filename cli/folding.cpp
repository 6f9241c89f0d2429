#include "cli/folding.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "cli/output.h"

namespace intarsia::cli {

// The lines of one rank keep their order: a line joins one after the rank's last line, or is added after it, so that
// later lines can still join those behind it. Lines of different ranks may change places, as they may anyway within
// such a short time.
void Folding::add(int64_t rank, std::string line, Clock::time_point now) {
  auto has = [rank](const Line& one) { return std::find(one.ranks.begin(), one.ranks.end(), rank) != one.ranks.end(); };
  auto next = std::find_if(held_.rbegin(), held_.rend(), has).base();
  auto same = std::find_if(next, held_.end(), [&](const Line& one) { return one.text == line; });
  if (same != held_.end()) return same->ranks.push_back(rank);
  held_.insert(next, {std::move(line), {rank}, now});
}

std::string Folding::take(Clock::time_point now, bool all) {
  auto is_old = [&](const Line& one) { return all || now - one.since >= kHeld; };
  auto end = std::find_if(held_.rbegin(), held_.rend(), is_old).base();
  std::string text;
  for (auto one = held_.begin(); one != end; ++one) text += "[" + ranks_text(std::move(one->ranks)) + "] " + one->text;
  held_.erase(held_.begin(), end);
  return text;
}

std::optional<Folding::Clock::time_point> Folding::due() const {
  if (held_.empty()) return std::nullopt;
  auto older = [](const Line& a, const Line& b) { return a.since < b.since; };
  return std::min_element(held_.begin(), held_.end(), older)->since + kHeld;
}

std::string ranks_text(std::vector<int64_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    auto last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(ranks[i]);
    if (last > i) text += (last == i + 1 ? "," : "-") + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

Folding& errors_of_ranks() {
  static Folding errors;
  return errors;
}

void show_errors(bool all) { write_all(STDERR_FILENO, errors_of_ranks().take(Folding::Clock::now(), all)); }

}  // namespace intarsia::cli
