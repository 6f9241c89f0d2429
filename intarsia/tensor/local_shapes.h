#pragma once
// From the shapes of the shards to the shape of the whole.

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/tensor/dtensor.h"

namespace intarsia {

// The global shape that the local tensors make, checked as the options ask; and the local tensor to use, which differs
// from `local` only where run_check has made replicas equal.
std::pair<at::Tensor, std::vector<int64_t>> fit_local_shapes(const at::Tensor& local, const Layout* layout,
                                                             const FromLocalOptions& options);

}  // namespace intarsia
