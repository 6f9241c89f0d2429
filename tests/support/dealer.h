#pragma once
// Deals whole tensors out to ranks and puts the pieces together again, by torch.chunk and cat alone. It shares no code
// with the library, so that tests of redistribution and of rules do not believe what they are to prove.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/core/placement.h"

namespace intarsia {

using Parts = std::vector<at::Tensor>;  // one per rank of a mesh, row-major

// The piece of each rank. The values of a Partial are drawn at random such that their reduction is the tensor.
Parts deal_out(const at::Tensor& whole, const Placements& placements, const std::vector<int64_t>& mesh_shape);

// The whole that the pieces make, or an error that says what does not fit (a shape, unequal replicas).
// The innermost (last) axis is put together first.
at::Tensor put_together(const Parts& pieces, const Placements& placements, const std::vector<int64_t>& mesh_shape,
                        at::IntArrayRef shape);

// Whether values of this type can be pending under the placement: no average of whole numbers, no largest complex
// number.
bool can_hold(const Placement& placement, at::ScalarType dtype);

// Empty if the tensors agree in shape, dtype and values (exact for whole numbers); else what differs.
std::string difference(const at::Tensor& actual, const at::Tensor& expected, double tolerance = 0);

// Seeded by what it is: the same on every rank and in every run.
void seed_dealer(uint64_t seed);

}  // namespace intarsia
