#pragma once
// Pending reductions of many tensors, carried out in few messages.

#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/comm/packed.h"
#include "intarsia/core/layout.h"

namespace intarsia {

// Values in `layout`, on which sums and averages alone are pending, with these carried out: a message per axis or axes
// that reduce alike, and per dtype. values[i] are the shards of tensor i.
ShardsList settled_together(const Layout& layout, ShardsList values);

// Whether settled_together can do it.
bool settle_by_sums(const Layout& layout);

// Reduces all pending values among the tensors, together where they have one layout, and remembers the results: whoever
// reads one of them next finds it reduced. Plain and undefined tensors are left out.
void settle_together(const std::vector<at::Tensor>& tensors);

}  // namespace intarsia
