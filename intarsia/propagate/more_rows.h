#pragma once
// Rows for pending norms and masked sums (core/more_reductions.h): no rule lists them, since there is one for every
// order and table.

#include "intarsia/propagate/choose.h"

namespace intarsia {

// Adds those that follow from the rows of a rule, where an input is such a reduction on this axis.
void add_more_rows(const Question& question, const Rows& base, int64_t axis, Rows& rows);

// Adds the forms of rows in which results that are pending sums are told as `sum`.
void add_rows_that_mask(const Placement& sum, const Rows& base, Rows& rows);

}  // namespace intarsia
