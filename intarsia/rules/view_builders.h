#pragma once
// Rules of views: what each output dim is of the input.

#include <vector>

#include "intarsia/rules/builders.h"

namespace intarsia {

// A view whose output dims are input dims in another order. `map` gives the input dim of each output dim, or -1.
Rule view(std::function<std::vector<int64_t>(const OpCall&)> map);

// A view that flattens and splits dims, keeping the order of elements.
Rule reshape();

}  // namespace intarsia
