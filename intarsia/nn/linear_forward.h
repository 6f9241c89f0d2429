#pragma once
// torch::nn::Linear on distributed weights.

namespace intarsia {

// Note [The forward of Linear]
// torch::nn::LinearImpl::forward does not call aten::linear: it calls t() and then addmm or matmul and +=. In these steps
// a style on the weight could not be kept apart from other uses of the weight, and a batch of sequences would be
// flattened. So our forward takes the place of LibTorch's, as printing does (see Note [Interposed functions]): it calls
// aten::linear where the weight is distributed, and does what LibTorch does everywhere else.

// Whether it does. False where LibTorch comes before this library in the search for symbols.
bool linear_is_ours();

}  // namespace intarsia
