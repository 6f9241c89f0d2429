#pragma once
// Rules of ops along one dim, whose result depends on the order of elements there: the other dims may be sharded.

#include <vector>

#include "intarsia/rules/builders.h"

namespace intarsia {

// Every output has the shape of the input, up to the extent of `dim`.
Rule scan_rule(Rows pending = {});

// One element per line along `dim`; without a dim, one of all elements.
Rule pick_rule();

// The dtypes of values and their indices.
std::vector<c10::ScalarType> with_places(const OpCall& call);

}  // namespace intarsia
