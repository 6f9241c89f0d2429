#pragma once
// Rows for pending norms and masked sums (core/more_reductions.h). No rule lists them, since every order and every
// table is a reduction of its own kind.

#include "intarsia/propagate/choose.h"

namespace intarsia {

// Adds the rows that follow from a rule's rows if an input has such a reduction pending on this axis.
void add_more_rows(const Question& question, const Rows& base, int64_t axis, Rows& rows);

// Adds copies of rows in which results that are pending sums become `sum`.
void add_rows_that_mask(const Placement& sum, const Rows& base, Rows& rows);

}  // namespace intarsia
