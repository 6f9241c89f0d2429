#pragma once
// Functions of torch::nn that this library interposes, because their code does not work on distributed tensors.

namespace intarsia {

// Note [The forward of Linear]
// torch::nn::LinearImpl::forward does not call aten::linear: it calls t() and then addmm or matmul and +=. In these
// steps a style on the weight could not be told apart from other uses of the weight, and a batch of sequences would be
// flattened. So our forward replaces LibTorch's, as printing does (see Note [Interposed functions]): it calls
// aten::linear if the weight is distributed, and does what LibTorch does otherwise.

// CrossMapLRN2dImpl::forward writes into plain tensors that it creates, and so does its backward, which cannot be
// intercepted (and it counts the first channel too often); ours raises an error for a distributed input and calls
// LibTorch's for others.

// MultiheadAttention, orthogonal_ and sparse_ call factory functions: ours open a FactoryScope, see Note [Factories],
// and call LibTorch's.

// Whether our forward of Linear is in use. False if LibTorch precedes this library in the search for symbols.
bool linear_is_ours();

}  // namespace intarsia
