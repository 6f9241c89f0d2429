#include <ATen/ATen.h>

#include "intarsia/comm/engine.h"

namespace intarsia {

void reduce_into(at::Tensor& accumulator, const at::Tensor& value, ReduceOp op) {
  bool logical = accumulator.scalar_type() == at::kBool;
  switch (op) {
    case ReduceOp::sum:
      if (logical) return void(accumulator.logical_or_(value));
      return void(accumulator.add_(value));
    case ReduceOp::product:
      if (logical) return void(accumulator.logical_and_(value));
      return void(accumulator.mul_(value));
    case ReduceOp::min: return void(at::minimum_out(accumulator, accumulator, value));
    case ReduceOp::max: return void(at::maximum_out(accumulator, accumulator, value));
    case ReduceOp::band: return void(accumulator.bitwise_and_(value));
    case ReduceOp::bor: return void(accumulator.bitwise_or_(value));
    case ReduceOp::bxor: return void(accumulator.bitwise_xor_(value));
    case ReduceOp::avg: break;
  }
  TORCH_INTERNAL_ASSERT(false, "avg reaches the engine as a sum");
}

}  // namespace intarsia
