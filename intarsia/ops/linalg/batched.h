#pragma once
// Rules of linear algebra: it works on the last two dims; leading dims that all tensors share are batches, and may be
// sharded.

#include <initializer_list>

#include "intarsia/rules/builders.h"

namespace intarsia {

// The rule in which only batches may be sharded.
Rule batched();

// Whether these inputs have at least two dims. For others, the plain op raises its own error.
bool are_matrices(const OpCall& call, std::initializer_list<size_t> inputs);

// The leading dims that two inputs, which are matrices, broadcast to.
std::vector<int64_t> shared_batch(const OpCall& call, size_t a, size_t b);

}  // namespace intarsia
