#pragma once
// Rows for NormPartial and MaskedPartial, which no rule lists, since each order and each table is a placement of its
// own.

#include "intarsia/propagate/choose.h"

namespace intarsia {

// Adds the rows that these placements of the inputs on this axis follow: those for any reduction (Row::any_reduction),
// and for masked sums also those for sums.
void add_rows_for_unlisted(const Question& question, const Rows& base, int64_t axis, Rows& rows);

// Adds, for rows that leave Partial(sum), the same rows leaving `masked`.
void add_rows_to_masked(const Placement& masked, const Rows& base, Rows& rows);

}  // namespace intarsia
