#pragma once
// Parameters of which ops get the whole, gathered when the first op needs it.
//
// Note [Gathered at first use]
// A parameter of fully_shard is one leaf with two values: a distributed tensor of shards, and the whole. Which one an
// op needs follows from the op. So the leaf and its handles have one more key, above autograd (see Note [Tensors with a
// note] for a key of the same kind). The kernel there looks at the call, has the owner gather if the op needs the
// whole, puts the stand-in into the place of the leaf (Note [One parameter, seen from outside]) and calls the op again.
// Modules need not know of it: hooks on modules only make the gathering earlier.
//
// Views of the whole have the key too. What an op computes from the whole may be needed again in backward, after the
// whole has been freed: the kernel puts a hook on the op's node that has the owner gather it before the node runs.
// Memory is freed by making the storage empty and filled again in place, so views that autograd has saved stay valid.
//
// Note [Reads are of the whole]
// | the op                                                        | sees                  |
// |---------------------------------------------------------------|-----------------------|
// | writes to a parameter: p.add_, p.copy_                        | shards                |
// | meets a plain tensor: linear(x, w)                            | the whole             |
// | is recorded by autograd, or is a formula of backward          | the whole             |
// | meets distributed tensors of the shards' mesh: grad.add(p)    | shards                |
// | makes a tensor like a parameter, or maps lists: zeros_like, clone, _foreach_norm | shards |
// | casts or moves a handle: p.detach().cpu(), state_dict()["w"].to(dtype)         | shards |
// | reads parameters alone: w.norm(), b.mm(a)                     | the whole             |
// The first row that fits holds. An op cannot know whether it is in the forward of a module of torch::nn, or in an
// optimizer. So the last row is the same with and without NoGradGuard, and what comes of it serves both: it is plain,
// beside activations, and is marked by the key (HandleKind::computed), so that beside a gradient it is taken for what
// it is, a value that all ranks have: grad.add(wd * p). A written one becomes distributed where it stands: (wd *
// p).add_(grad).

#include <ATen/core/Tensor.h>

#include "intarsia/data_parallel/handles.h"

namespace intarsia {

// A plain tensor with the key over this memory.
at::Tensor make_whole(at::Storage storage, at::IntArrayRef sizes, at::IntArrayRef strides, caffe2::TypeMeta dtype);
// The same distributed tensor with the key.
at::Tensor with_first_use_key(const at::Tensor& dtensor);

}  // namespace intarsia
