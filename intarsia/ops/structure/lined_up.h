#pragma once
// Tensors that are joined along a sharded dim.

#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/rules/lowering.h"

namespace intarsia {

// The layout in which all tensors of a call are joined along `dim`: that of the first one that is sharded there, with
// nothing pending. Null if the rows apply: none is sharded there, or their shapes do not match.
const Layout* joining_layout(const CutCall& c, int64_t dim);

// The tensors in that layout and in one dtype.
std::vector<at::Tensor> lined_up(const std::vector<at::Tensor>& tensors, const Layout* layout);

}  // namespace intarsia
