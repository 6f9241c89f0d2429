#include "intarsia/redistribute/overlap.h"

#include <algorithm>

namespace intarsia {

Runs overlap(const Intervals& source, const Intervals& target) {
  Runs runs;
  int64_t target_base = 0;
  for (auto& t : target) {
    int64_t source_base = 0;
    Runs found;
    for (auto& s : source) {
      auto begin = std::max(s.begin, t.begin), end = std::min(s.end, t.end);
      if (begin < end) found.push_back({source_base + begin - s.begin, target_base + begin - t.begin, end - begin});
      source_base += s.size();
    }
    std::sort(found.begin(), found.end(), [](const Run& a, const Run& b) { return a.target < b.target; });
    runs.append(found.begin(), found.end());
    target_base += t.size();
  }
  return runs;
}

std::vector<Runs> overlap(const Layout& from, c10::ArrayRef<int64_t> from_coordinate, const Layout& to,
                          c10::ArrayRef<int64_t> to_coordinate, c10::ArrayRef<int64_t> shape) {
  std::vector<Runs> result;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    auto runs = overlap(intervals_of(from, dim, shape[dim], from_coordinate),
                        intervals_of(to, dim, shape[dim], to_coordinate));
    if (runs.empty()) return {};
    result.push_back(std::move(runs));
  }
  return result;
}

int64_t count_of(const std::vector<Runs>& overlaps) {
  if (overlaps.empty()) return 0;
  int64_t count = 1;
  for (auto& runs : overlaps) {
    int64_t sum = 0;
    for (auto& run : runs) sum += run.size;
    count *= sum;
  }
  return count;
}

}  // namespace intarsia
