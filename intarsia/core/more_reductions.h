#pragma once
// Reductions beyond those that ReduceOp names: norms of any order, and the sums that lookups in a sharded table leave.
//
// Each is a value of ReduceOp above the named ones, and its parameters are kept in a table here. So a placement stays a
// small plain value, and code that does not know these reductions runs them first, as it does with every reduction for
// which it has no row.

#include <optional>
#include <vector>

#include "intarsia/core/placement.h"

namespace intarsia {

// Every rank holds the norm of its part, and the true value is the norm of these norms: the root of the sum of their
// powers. The order must be finite and above 0. Entries are never removed; more than 200 of all kinds is an error.
ReduceOp norm_op(double order);
std::optional<ReduceOp> norm_op_if_room(double order);  // none if norm_op would raise an error
std::optional<double> norm_order(ReduceOp op);          // none for other reductions

// A sum of what the ranks found in their shards of a table of shape `table`, sharded along `dim`; a rank contributes 0
// for what it does not hold. It differs from a plain sum because PyTorch's DTensor distinguishes the two. Once the
// table of reductions is full, further ones are plain sums.
struct MaskedSum {
  std::vector<int64_t> table;
  int64_t dim = 0;
  bool operator==(const MaskedSum&) const = default;
};
ReduceOp masked_sum(const MaskedSum& sum);
const MaskedSum* masked_sum_of(ReduceOp op);  // null for other reductions

// The reduction that collectives run in its place: a sum of powers for norms, a plain sum for masked sums.
ReduceOp travels_as(ReduceOp op);

// Whether the terms add up: sums, masked sums, and averages, which are sums that are divided at the end.
bool adds_up(ReduceOp op);

}  // namespace intarsia
