#include "intarsia/redistribute/common_runs.h"

namespace intarsia {

Runs common_runs(const Intervals& source, const Intervals& target) {
  Runs runs;
  int64_t source_passed = 0, target_passed = 0;  // positions before *s and before *t
  for (auto s = source.begin(), t = target.begin(); s != source.end() && t != target.end();) {
    auto both = overlap(*s, *t);
    if (both.size()) {
      runs.push_back({source_passed + both.begin - s->begin, target_passed + both.begin - t->begin, both.size()});
    }
    if (s->end < t->end) {
      source_passed += (s++)->size();
    } else {
      target_passed += (t++)->size();
    }
  }
  return runs;
}

std::vector<Runs> common_runs(const Layout& from, c10::ArrayRef<int64_t> from_coordinate, const Layout& to,
                              c10::ArrayRef<int64_t> to_coordinate, c10::ArrayRef<int64_t> shape) {
  std::vector<Runs> result;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    auto runs = common_runs(intervals_of(from, dim, shape[dim], from_coordinate),
                            intervals_of(to, dim, shape[dim], to_coordinate));
    if (runs.empty()) return {};
    result.push_back(std::move(runs));
  }
  return result;
}

c10::SmallVector<int64_t, 5> shape_of(const std::vector<Runs>& common) {
  c10::SmallVector<int64_t, 5> shape;
  for (auto& runs : common) {
    auto& extent = shape.emplace_back(0);
    for (auto& run : runs) extent += run.size;
  }
  return shape;
}

int64_t count_of(const std::vector<Runs>& common) {
  return common.empty() ? 0 : c10::multiply_integers(shape_of(common));
}

}  // namespace intarsia
