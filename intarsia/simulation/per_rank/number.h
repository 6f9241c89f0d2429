#pragma once
// SymInt, SymFloat and SymBool with a value per hosted rank: sizes of a per-rank tensor that differ between the ranks.
//
// Arithmetic and comparisons work rank by rank. A question that needs one answer (a branch, a plain int) gets it if all
// ranks agree, and otherwise raises an error that lists their values.

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/SymInt.h>

namespace intarsia {

// A plain number if all values are equal, else a per-rank number.
c10::SymInt per_rank_int(const std::vector<int64_t>& values);
c10::SymBool per_rank_bool(const std::vector<bool>& values);

// The number of ranks that a number has values for; 0 if it is the same on all.
size_t rank_count(const c10::IValue& number);

// The plain numbers of all hosted ranks; none for a number that is the same on all.
std::vector<c10::IValue> numbers_of(const c10::IValue& number);

// The plain number of the hosted rank `slot`.
c10::IValue number_at(const c10::IValue& number, size_t slot);

}  // namespace intarsia
