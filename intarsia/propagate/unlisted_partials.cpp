#include "intarsia/propagate/unlisted_partials.h"

#include <algorithm>

namespace intarsia {
namespace {

const Placement kSum = Partial(ReduceOp::sum);

// Whether a placement that is no Partial may stand in a row where Partial(sum) does.
bool follows(const Row& row, const Placement& placement) {
  return std::visit(
      overloaded{[](const Replicate&) { return false; }, [](const Shard&) { return false; },
                 [](const StridedShard&) { return false; }, [](const Partial&) { return false; },
                 [&](const NormPartial&) { return row.any_reduction; }, [](const MaskedPartial&) { return true; }},
      placement);
}

bool takes_sum(const Row& row) { return std::find(row.in.begin(), row.in.end(), kSum) != row.in.end(); }

void add_new(Rows& rows, Row row) {
  if (std::find(rows.begin(), rows.end(), row) == rows.end()) rows.push_back(std::move(row));
}

}  // namespace

void add_rows_for_unlisted(const Question& q, const Rows& base, int64_t axis, Rows& rows) {
  for (auto* layout : q.now) {
    if (!layout) continue;
    auto& pending = layout->placements()[axis];
    for (auto row : base) {
      if (!takes_sum(row) || !follows(row, pending)) continue;
      std::replace(row.in.begin(), row.in.end(), kSum, pending);
      std::replace(row.out.begin(), row.out.end(), kSum, pending);
      add_new(rows, std::move(row));
    }
  }
}

void add_rows_to_masked(const Placement& masked, const Rows& base, Rows& rows) {
  for (auto row : base) {
    std::replace(row.out.begin(), row.out.end(), kSum, masked);
    add_new(rows, std::move(row));
  }
}

}  // namespace intarsia
