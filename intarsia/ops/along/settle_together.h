#pragma once
// Runs the pending reductions of many tensors in few messages.

#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/comm/packed.h"
#include "intarsia/core/layout.h"

namespace intarsia {

// Values in `layout`, which has only sums and averages pending, with these run: one message per dtype and per set of
// axes that can reduce together. values[i] are the shards of tensor i.
ShardsList settled_together(const Layout& layout, ShardsList values);

// Whether settled_together handles this layout.
bool settle_by_sums(const Layout& layout);

// Reduces all pending values among the tensors, those of one layout together, and remembers the results: the next
// reader of any of them finds it reduced. Plain and undefined tensors are left out.
void settle_together(const std::vector<at::Tensor>& tensors);

}  // namespace intarsia
