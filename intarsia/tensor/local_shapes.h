#pragma once
// Infers the global shape and strides of a tensor from those of its shards.

#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/tensor/dtensor.h"

namespace intarsia {

struct FittedLocal {
  at::Tensor local;                    // differs from the given one only where run_check has made replicas equal
  std::vector<int64_t> shape, stride;  // of the whole
};

// The global shape and strides that follow from the local tensors, checked as the options say.
FittedLocal fit_local_shapes(const at::Tensor& local, const Layout* layout, const FromLocalOptions& options);

}  // namespace intarsia
