#pragma once
// The local tensors of a distributed tensor, one per hosted slot of its mesh, in the order of DeviceMesh::slots().

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace intarsia {

using Shards = c10::SmallVector<at::Tensor, 1>;  // a real process hosts one rank: no allocation

}  // namespace intarsia
