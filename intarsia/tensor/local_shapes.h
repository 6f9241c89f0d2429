#pragma once
// Infers the global shape and strides of a tensor from those of its shards.

#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/tensor/dtensor.h"

namespace intarsia {

struct FittedLocal {
  at::Tensor local;                    // another one than was given only where run_check has made replicas equal
  std::vector<int64_t> shape, stride;  // of the whole
};

// The global shape and strides that the local tensors make, checked as the options ask.
FittedLocal fit_local_shapes(const at::Tensor& local, const Layout* layout, const FromLocalOptions& options);

}  // namespace intarsia
