#pragma once
// Tensors that are made like a parameter of fully_shard while autograd records nothing: zeros_like(p), p.clone().
//
// Note [Undecided tensors]
// Nobody knows yet what such a tensor is for. An optimizer makes its state so, and wants shards; the forward of a
// module wants what it gets in training, the whole. So the tensor is made of shards, for which nothing is gathered, and
// keeps the key of parameters until its use decides. Beside an activation it becomes whole, in place if it is written
// to; beside a gradient, or any other distributed tensor that is written into it, it becomes a distributed tensor like
// any other. What is computed from undecided tensors and parameters alone is also undecided. A plain tensor of one
// element may differ between the ranks (w.clone() * x.mean()), so it decides for the whole; a number that does is part
// of the origin, and an error of the gathering (Note [Origins]).

#include <ATen/core/Tensor.h>

namespace intarsia {

// It is shards like any other distributed tensor, in place.
void decide_for_shards(const at::Tensor& tensor);

// The whole, a plain tensor; all ranks call it together. In place if it `is_written`: an error if another tensor shares
// its memory.
at::Tensor decide_for_whole(const at::Tensor& tensor, bool is_written);

// The handle is one of another tensor from now on.
void adopt(const at::Tensor& handle, const at::Tensor& tensor);

}  // namespace intarsia
