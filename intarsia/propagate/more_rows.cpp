#include "intarsia/propagate/more_rows.h"

#include <algorithm>

#include "intarsia/core/more_reductions.h"

namespace intarsia {
namespace {

Row with(Row row, const Placement& from, const Placement& to) {
  std::replace(row.in.begin(), row.in.end(), from, to);
  std::replace(row.out.begin(), row.out.end(), from, to);
  return row;
}

bool names(const Row& row, const Placement& placement) {
  return std::find(row.in.begin(), row.in.end(), placement) != row.in.end();
}

bool has(const Rows& rows, const Row& row) { return std::find(rows.begin(), rows.end(), row) != rows.end(); }

}  // namespace

void add_more_rows(const Question& q, const Rows& base, int64_t axis, Rows& rows) {
  const Placement product = Partial(ReduceOp::product), parity = Partial(ReduceOp::bxor), sum = Partial(ReduceOp::sum);
  for (auto* layout : q.now) {
    if (!layout) continue;
    auto& pending = layout->placements()[axis];
    auto op = pending_op(pending);
    if (!op || travels_as(*op) == *op) continue;
    bool adds = masked_sum_of(*op);
    for (auto& row : base) {
      // An op that treats products and parities the same treats any reduction so, element by element.
      bool any = names(row, product) && has(base, with(row, product, parity));
      auto made = any ? with(row, product, pending) : with(row, sum, pending);
      if ((any || (adds && names(row, sum))) && !has(rows, made)) rows.push_back(std::move(made));
    }
  }
}

void add_rows_that_mask(const Placement& sum, const Rows& base, Rows& rows) {
  for (auto row : base) {
    std::replace(row.out.begin(), row.out.end(), Placement(Partial(ReduceOp::sum)), sum);
    if (!has(rows, row)) rows.push_back(std::move(row));
  }
}

}  // namespace intarsia
