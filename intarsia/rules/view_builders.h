#pragma once
// Functions that build rules of views, from what each output dim is of the input.

#include <optional>
#include <vector>

#include "intarsia/rules/builders.h"

namespace intarsia {

// A view whose output dims are input dims in another order. `map` gives the input dim of each output dim, or -1.
Rule view(std::function<std::vector<int64_t>(const OpCall&)> map);

// A view that flattens and splits dims, keeping the order of elements.
Rule reshape();

// The layout of such a view's result if nothing moves, where axes shard several of the dims that it merges. Rows cannot
// tell: they know one axis, and a StridedShard's blocks refer to what the axes before it have left. None if no layout
// describes it.
std::optional<Placements> viewed_in_place(const OpCall& call, const Layout& in);

}  // namespace intarsia
