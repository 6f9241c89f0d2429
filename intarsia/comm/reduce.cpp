#include "intarsia/comm/reduce.h"

#include <ATen/ATen.h>

namespace intarsia {
namespace {

// ATen cannot add or compare the unsigned types wider than a byte. Their bits add as those of the signed type of the
// same width do, and flipping the top bit of both maps the unsigned order to the signed one.
at::ScalarType signed_type(at::ScalarType type) {
  switch (type) {
    case at::kUInt16: return at::kShort;
    case at::kUInt32: return at::kInt;
    case at::kUInt64: return at::kLong;
    default: return type;
  }
}

at::Tensor flip_top_bit(const at::Tensor& t) {
  return t.bitwise_xor(static_cast<int64_t>(~uint64_t{0} << (8 * t.element_size() - 1)));
}

bool reduce_unsigned(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  auto type = signed_type(out.scalar_type());
  if (type == out.scalar_type() || (op != ReduceOp::sum && op != ReduceOp::min && op != ReduceOp::max)) return false;
  auto to = out.view(type), x = a.view(type), y = b.view(type);
  if (op == ReduceOp::sum) {
    at::add_out(to, x, y);
  } else {
    auto u = flip_top_bit(x), v = flip_top_bit(y);
    to.copy_(flip_top_bit(op == ReduceOp::min ? at::minimum(u, v) : at::maximum(u, v)));
  }
  return true;
}

}  // namespace

void reduce(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  bool logical = out.scalar_type() == at::kBool;
  if (reduce_unsigned(out, a, b, op)) return;
  switch (op) {
    case ReduceOp::sum: logical ? at::logical_or_out(out, a, b) : at::add_out(out, a, b); return;
    case ReduceOp::product: logical ? at::logical_and_out(out, a, b) : at::mul_out(out, a, b); return;
    case ReduceOp::min: at::minimum_out(out, a, b); return;
    case ReduceOp::max: at::maximum_out(out, a, b); return;
    case ReduceOp::band: at::bitwise_and_out(out, a, b); return;
    case ReduceOp::bor: at::bitwise_or_out(out, a, b); return;
    case ReduceOp::bxor: at::bitwise_xor_out(out, a, b); return;
    case ReduceOp::avg: break;
  }
  TORCH_INTERNAL_ASSERT(false, "avg reaches the engine as a sum");
}

void reduce_parts(const at::Tensor& parts, int64_t n, at::Tensor result, ReduceOp op) {
  auto part = parts.view({n, result.numel()});
  if (n == 1) result.copy_(part[0]);
  for (int64_t j = 1; j < n && result.numel(); ++j) reduce(result, j == 1 ? part[0] : result, part[j], op);
}

void check_reducible(const char* where, at::ScalarType type, ReduceOp op) {
  bool complex = at::isComplexType(type), inexact = complex || at::isFloatingType(type);
  TORCH_CHECK_VALUE(op != ReduceOp::avg || inexact, "[", where, "] the average of ", type,
                    " tensors is not whole. Use Partial(sum).");
  TORCH_CHECK_TYPE((op != ReduceOp::min && op != ReduceOp::max) || !complex, "[", where, "] ", type,
                   " tensors have no ", str(op), ": complex numbers have no order. Reduce their absolute values.");
  TORCH_CHECK_TYPE((op != ReduceOp::band && op != ReduceOp::bor && op != ReduceOp::bxor) || !inexact, "[", where, "] ",
                   str(op), " is for integers and bool, not for ", type, ". Use sum, product, min or max.");
}

}  // namespace intarsia
