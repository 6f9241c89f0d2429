#pragma once
// Gathers parameters when the first op needs the whole.
//
// Note [Gathered at first use]
// A parameter of fully_shard is one leaf with two values: a distributed tensor of shards, and the whole. Which one an
// op sees follows from the call: see param_use.h. So the leaf and its handles have one more key, above autograd (see
// Note [Tensors with a note] for a key of the same kind). The kernel there looks at the call, has the owner gather if
// the op needs the whole, replaces the leaf by the stand-in (Note [One parameter, seen from outside]) and calls the op
// again. Modules need not know about it: hooks on modules only make the gather earlier.
//
// Views of the whole have the key as well. What an op computes from the whole may be needed again in backward, after
// the whole has been freed: the kernel puts a hook on the op's node that has the owner gather it before the node runs.
// Memory is freed by emptying the storage, and filled again in place, so views that autograd has saved stay valid.

#include <ATen/core/Tensor.h>

#include "intarsia/data_parallel/fully_shard/param_handles.h"

namespace intarsia {

// A plain tensor with the key over this memory.
at::Tensor make_whole(at::Storage storage, at::IntArrayRef sizes, at::IntArrayRef strides, caffe2::TypeMeta dtype);
// The same distributed tensor with the key, and without it.
at::Tensor with_first_use_key(const at::Tensor& dtensor);
at::Tensor without_first_use_key(const at::Tensor& dtensor);

}  // namespace intarsia
