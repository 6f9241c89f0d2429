#pragma once
// Combines numbers of several meshes, and plain ones, into one tensor: see Note [Plain numbers among distributed ones].

#include "intarsia/rules/lowering.h"

namespace intarsia {

// stack(numbers, dim) of tensors without dims, or cat(numbers, dim) of tensors of one element, which have one dim.
// Empty if they are all on one mesh, where rows apply, or have other shapes.
Lowering join_numbers(const CutCall& call, int64_t ndim);

}  // namespace intarsia
