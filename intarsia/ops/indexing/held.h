#pragma once
// The positions of an indexed dim that a rank holds.

#include "intarsia/rules/rule.h"

namespace intarsia {

// The dim that the index refers to, not negative.
int64_t indexed_dim(const OpCall& call);

// Whether a mesh axis shards the dim.
bool cuts_dim(const Layout& layout, int64_t dim);

// The positions of `dim` that this rank holds. Rules with such a local function are not aligned, so they are one run.
Interval held_places(const LocalCall& local, int64_t dim);

}  // namespace intarsia
