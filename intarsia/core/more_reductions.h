#pragma once
// Reductions beyond those that ReduceOp names: norms of any order, and the sums that lookups in a cut table leave.
//
// Each is a value of ReduceOp behind the named ones, and what belongs to it is kept here. So a placement stays as small
// and as plain as it is, and what knows nothing of these reduces them first, as it does with every reduction that it
// has no row for.

#include <optional>
#include <vector>

#include "intarsia/core/placement.h"

namespace intarsia {

// Every rank holds a norm of its part, and the true value is the norm of these: the root of the sum of their powers. An
// order is finite and above 0. Each is kept for good; when there are more than 200 of all kinds it is an error.
ReduceOp norm_op(double order);
std::optional<ReduceOp> norm_op_if_room(double order);  // none where norm_op is an error
std::optional<double> norm_order(ReduceOp op);          // none for other reductions

// A sum of what the ranks found in their parts of a table of shape `table`, cut along `dim`; what a rank does not hold
// is 0. They are distinguished from plain sums because PyTorch's DTensor does so. After 200 of them, the next ones are
// plain sums.
struct MaskedSum {
  std::vector<int64_t> table;
  int64_t dim = 0;
  bool operator==(const MaskedSum&) const = default;
};
ReduceOp masked_sum(const MaskedSum& sum);
const MaskedSum* masked_sum_of(ReduceOp op);  // null for other reductions

// The reduction by which values travel: norms as the sums of their powers, masked sums as sums.
ReduceOp travels_as(ReduceOp op);

// Whether terms add up: sums, also masked ones, and averages, which are sums that are divided at the end.
bool adds_up(ReduceOp op);

}  // namespace intarsia
