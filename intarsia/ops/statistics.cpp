// Means, variances and norms over cut dims: sums of the shards travel, never the values.

#include <cmath>

#include <ATen/ATen.h>

#include "intarsia/ops/layouts.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

using Stack = std::vector<c10::IValue>;

std::vector<int64_t> dims_of(const c10::IValue& value, int64_t ndim) {
  return wrapped_dims(value.isNone() ? std::vector<int64_t>() : value.toIntVector(), ndim);
}

std::optional<at::ScalarType> dtype_of(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional(value.toScalarType());
}

// mean = sum / count, so that shards of unequal size weigh right. Half types are summed in float, as the plain op does.
bool mean(Stack& stack, const std::vector<int64_t>& dims, bool keep, std::optional<at::ScalarType> dtype) {
  auto self = stack[0].toTensor();
  auto type = dtype.value_or(self.scalar_type());
  if (!is_cut(self, dims) || !(at::isFloatingType(type) || at::isComplexType(type))) return false;
  auto sum = at::sum(self, dims, keep, sum_type(type));
  stack = {sum.div_(extent(self, dims)).to(type)};
  return true;
}

// var(self, dim, correction, keepdim): the mean first, then the squares of what is left. This is exact for shards of any
// size, where sums of squares would cancel.
bool variance(Stack& stack, bool root, bool with_mean) {
  auto self = stack[0].toTensor();
  auto dims = dims_of(stack[1], self.dim());
  bool keep = stack[3].toBool();
  auto type = self.scalar_type();
  if (!is_cut(self, dims) || !(at::isFloatingType(type) || at::isComplexType(type))) return false;
  auto correction = stack[2].isNone() ? 1.0 : stack[2].toScalar().toDouble();
  auto x = settle(self).to(sum_type(type));
  auto count = extent(x, dims);
  auto mean = settle(at::div(at::sum(x, dims, true), count));
  auto centered = at::abs(at::sub(x, mean));
  auto squares = at::sum(at::mul(centered, centered), dims, keep);
  auto result = at::div(squares, std::max(count - correction, 0.0));
  if (root) result = at::sqrt(result);
  stack = {result.to(at::toRealValueType(type))};
  if (with_mean) stack.emplace_back((keep ? mean : at::squeeze(mean, dims)).to(type));
  return true;
}

at::Tensor norm_of(const at::Tensor& lengths, double ord, const std::vector<int64_t>& dims, bool keep) {
  if (std::isinf(ord)) return ord > 0 ? at::amax(lengths, dims, keep) : at::amin(lengths, dims, keep);
  if (ord == 0) return at::sum(at::ne(lengths, 0), dims, keep, lengths.scalar_type());
  if (ord == 1) return at::sum(lengths, dims, keep);
  if (ord == 2) return at::sqrt(at::sum(at::mul(lengths, lengths), dims, keep));
  return at::pow(at::sum(at::pow(lengths, ord), dims, keep), 1 / ord);
}

// linalg_vector_norm(self, ord, dim, keepdim, dtype)
bool vector_norm(Stack& stack) {
  auto self = stack[0].toTensor();
  auto dims = dims_of(stack[2], self.dim());
  auto dtype = dtype_of(stack[4]);
  auto type = dtype.value_or(self.scalar_type());
  if (!is_cut(self, dims) || self.numel() == 0) return false;
  if (!(at::isFloatingType(type) || at::isComplexType(type))) return false;
  auto lengths = at::abs(settle(self).to(sum_type(type)));
  auto result = norm_of(lengths, stack[1].toScalar().toDouble(), dims, stack[3].toBool());
  stack = {result.to(at::toRealValueType(type))};
  return true;
}

at::Scalar ord_of(const c10::IValue& value) { return value.isNone() ? at::Scalar(2) : value.toScalar(); }

}  // namespace

void add_statistics_ops(RuleTable& t) {
  t.decompose("aten::mean", [](auto& stack) {
    return mean(stack, wrapped_dims({}, stack[0].toTensor().dim()), false, dtype_of(stack[1]));
  });
  t.decompose("aten::mean.dim", [](auto& stack) {
    return mean(stack, dims_of(stack[1], stack[0].toTensor().dim()), stack[2].toBool(), dtype_of(stack[3]));
  });
  t.decompose("aten::var.correction", [](auto& stack) { return variance(stack, false, false); });
  t.decompose("aten::std.correction", [](auto& stack) { return variance(stack, true, false); });
  t.decompose("aten::var_mean.correction", [](auto& stack) { return variance(stack, false, true); });
  t.decompose("aten::std_mean.correction", [](auto& stack) { return variance(stack, true, true); });
  t.decompose("aten::linalg_vector_norm", vector_norm);

  t.decompose("aten::dist", [](auto& stack) {
    stack = {at::linalg_vector_norm(at::sub(stack[0].toTensor(), stack[1].toTensor()), stack[2].toScalar())};
    return true;
  });
  t.decompose("aten::trace", [](auto& stack) {
    if (stack[0].toTensor().dim() != 2) return false;
    stack = {at::sum(at::diagonal(stack[0].toTensor()))};
    return true;
  });
  t.decompose("aten::equal", [](auto& stack) {
    auto a = stack[0].toTensor(), b = stack[1].toTensor();
    if (!is_dtensor(a) || !is_dtensor(b) || mesh_of(a) != mesh_of(b) || a.scalar_type() != b.scalar_type()) return false;
    if (a.sizes() != b.sizes()) return stack = {false}, true;
    if (mesh_of(a).slots().empty()) return stack = {true}, true;  // a rank off the mesh holds nothing that differs
    stack = {at::all(at::eq(a, b)).template item<bool>()};
    return true;
  });
  t.decompose("aten::is_same_size", [](auto& stack) {
    stack = {stack[0].toTensor().sizes() == stack[1].toTensor().sizes()};
    return true;
  });

  // The older names of the same; norms of all elements are in total_norms.cpp.
  t.decompose("aten::norm.ScalarOpt_dim", [](auto& stack) {
    auto dims = stack[2].toIntVector();
    stack = {at::linalg_vector_norm(stack[0].toTensor(), ord_of(stack[1]), at::IntArrayRef(dims), stack[3].toBool())};
    return true;
  });
  t.decompose("aten::norm.ScalarOpt_dim_dtype", [](auto& stack) {
    auto dims = stack[2].toIntVector();
    stack = {at::linalg_vector_norm(stack[0].toTensor(), ord_of(stack[1]), at::IntArrayRef(dims), stack[3].toBool(),
                                    dtype_of(stack[4]))};
    return true;
  });
}

}  // namespace intarsia
