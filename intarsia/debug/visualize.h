#pragma once
// Draws layouts as text: which rank holds what.

#include <string>

#include <ATen/core/Tensor.h>

#include "intarsia/nn/module_ref.h"

namespace intarsia {

// A box per piece of a distributed tensor of at most 2 dims, with the ranks that hold it; positions at the edges.
//         0-2  3-5
//       ┌────┬────┐
//   0-1 │ 0  │ 1  │
//       ├────┼────┤
//   2-3 │ 2  │ 3  │
//       └────┴────┘
// With `colour`, every set of ranks has a different background (ANSI escapes). Needs no communication.
std::string visualize_sharding(const at::Tensor& tensor, bool colour = false);

// A table with a line for every parameter and buffer: name, shape, dtype, placements, local shape on each rank.
//   name       shape    dtype  placements  local shape
//   fc.weight  [5, 3]   Float  [S(0)]      [2, 3] on 0-1, [1, 3] on 2, [0, 3] on 3
// Under data parallelism a table of groups and replicas follows, see groups_table.
std::string describe(ConstModuleRef module);

// The line of a single tensor, plain ones included: [5, 3] Float [S(0)] on DeviceMesh(cpu, tp=4): [2, 3] on 0-1, ...
std::string describe(const at::Tensor& tensor);

}  // namespace intarsia
