#pragma once
// Registers the kernels of per-rank tensors, for every op.

namespace intarsia {

void register_per_rank();

}  // namespace intarsia
