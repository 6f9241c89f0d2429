#pragma once
// Rules of views: what each output dim is of the input.

#include <optional>
#include <vector>

#include "intarsia/rules/builders.h"

namespace intarsia {

// A view whose output dims are input dims in another order. `map` gives the input dim of each output dim, or -1.
Rule view(std::function<std::vector<int64_t>(const OpCall&)> map);

// A view that flattens and splits dims, keeping the order of elements.
Rule reshape();

// How the result of such a view lies if nothing moves, where axes cut several of the dims that it merges: rows know one
// axis, and the blocks of a cut are counted in what the axes before it have left. None where no layout says it.
std::optional<Placements> viewed_in_place(const OpCall& call, const Layout& in);

}  // namespace intarsia
