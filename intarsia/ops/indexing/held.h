#pragma once
// The places of an indexed dim that a rank holds.

#include "intarsia/rules/rule.h"

namespace intarsia {

// The dim that the index speaks of, not negative.
int64_t indexed_dim(const OpCall& call);

bool cuts_dim(const Layout& layout, int64_t dim);

// The places of `dim` that this rank holds. Rules with such a local part are not aligned, so it is one run.
Interval held_places(const LocalCall& local, int64_t dim);

}  // namespace intarsia
