#include "intarsia/random/runs.h"

namespace intarsia {

HeldRuns::HeldRuns(std::vector<int64_t> sizes, std::vector<Intervals> positions) : positions_(std::move(positions)) {
  auto is_whole = [&](size_t d) { return positions_[d].size() == 1 && positions_[d][0] == Interval{0, sizes[d]}; };
  while (positions_.size() > 1 && is_whole(positions_.size() - 1)) positions_.pop_back();
  int64_t stride = 1;
  strides_.resize(sizes.size());
  for (auto d = sizes.size(); d-- > 0; stride *= sizes[d]) strides_[d] = stride;
}

void HeldRuns::for_each(const std::function<void(int64_t begin, int64_t count)>& show) const {
  if (numel() > 0) walk(0, 0, show);
}

int64_t HeldRuns::numel() const {
  auto count = strides_[positions_.size() - 1];
  for (auto& held : positions_) count *= extent_of(held);
  return count;
}

void HeldRuns::walk(size_t dim, int64_t begin, const std::function<void(int64_t, int64_t)>& show) const {
  auto stride = strides_[dim];
  for (auto& interval : positions_[dim]) {
    if (dim + 1 == positions_.size()) {
      show(begin + interval.begin * stride, interval.size() * stride);
    } else {
      for (auto i = interval.begin; i < interval.end; ++i) walk(dim + 1, begin + i * stride, show);
    }
  }
}

}  // namespace intarsia
