#pragma once
// rms_norm as differentiable ops that none writes in place: LibTorch adds eps to a mean in place, which is a pending sum
// where the normalized dim is cut.

#include <torch/library.h>

namespace intarsia {

void register_rms_norm(torch::Library& aten, torch::Library& aten_autograd);

}  // namespace intarsia
