#include "intarsia/data_parallel/replicate/comm_hooks.h"

#include <memory>

#include <ATen/ATen.h>

#include "intarsia/data_parallel/reduction.h"

namespace intarsia {

CommHook compress_to(at::ScalarType dtype) {
  TORCH_CHECK_TYPE(at::isFloatingType(dtype), "[compress_to] ", dtype,
                   " cannot hold gradients. Use kHalf or kBFloat16.");
  return [dtype](GradientBucket& bucket) -> Wait {
    Shards small;
    for (auto& value : bucket.values) {
      small.push_back(value.to(dtype));
      if (bucket.op == ReduceOp::avg) small.back().div_(bucket.axis.size());
    }
    auto reduction = std::make_shared<Reduction>(bucket.axis, small, ReduceOp::sum);
    reduction->begin();
    return [reduction, small, values = bucket.values] {
      reduction->finish();
      for (size_t slot = 0; slot < small.size(); ++slot) values[slot].copy_(small[slot]);
    };
  };
}

}  // namespace intarsia
