#pragma once
// The elements of a shard as runs of consecutive elements of the whole tensor.

#include <functional>
#include <vector>

#include "intarsia/core/layout.h"

namespace intarsia {

class HeldRuns {
 public:
  // `positions` are those held of each dim, of the given sizes. The last dim varies fastest.
  HeldRuns(std::vector<int64_t> sizes, std::vector<Intervals> positions);

  // Calls `show` for the runs, ascending, with the first element in the whole and the count. In the shard they are
  // contiguous.
  void for_each(const std::function<void(int64_t begin, int64_t count)>& show) const;

  int64_t numel() const;
  bool operator==(const HeldRuns&) const = default;

 private:
  void walk(size_t dim, int64_t begin, const std::function<void(int64_t, int64_t)>& show) const;

  std::vector<int64_t> strides_;
  std::vector<Intervals> positions_;  // up to the last dim of which only some are held
};

}  // namespace intarsia
