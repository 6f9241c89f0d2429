#pragma once
// LibTorch functions that read data or make plain tensors on their way (lengths of sequences, causal masks, flattened
// batches, states that a recurrent layer starts from), written in differentiable ops on distributed tensors.

#include <torch/library.h>

namespace intarsia {

void register_composites(torch::Library& aten, torch::Library& aten_autograd);

// Gradients whose formulas in LibTorch write into plain tensors: of cumprod, the matrix exponential, mvlgamma.
void register_gradients(torch::Library& aten_autograd);

}  // namespace intarsia
