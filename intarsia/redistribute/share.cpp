#include "intarsia/redistribute/share.h"

#include <limits>

#include <ATen/ATen.h>

namespace intarsia {
namespace {

// The lowest or highest number of a dtype.
c10::Scalar limit(c10::ScalarType dtype, bool lowest) {
  if (dtype == c10::kBool) return !lowest;
  TORCH_INTERNAL_ASSERT(!c10::isComplexType(dtype), dtype, " has no order");
  if (c10::isFloatingType(dtype)) return (lowest ? -1 : 1) * std::numeric_limits<double>::infinity();
  auto unused = 64 - 8 * c10::elementSize(dtype);  // bits
  if (!c10::isSignedType(dtype)) return lowest ? uint64_t{0} : std::numeric_limits<uint64_t>::max() >> unused;
  return (lowest ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max()) >> unused;
}

// The reduction that decides the share of a rank: the first pending one for which it is not the first rank and which
// has neutral elements. None if it holds the value. Other pending reductions change nothing: a share of 0 in a sum is
// 0.
std::optional<ReduceOp> deciding(const Layout& layout, c10::ArrayRef<int64_t> coordinate) {
  for (size_t axis = 0; axis < layout.placements().size(); ++axis) {
    auto& placement = layout.placements()[axis];
    if (!is_partial(placement)) continue;
    auto op = collective_op(placement);
    if (!holds_value(op, coordinate[axis])) return op;
  }
  return std::nullopt;
}

}  // namespace

c10::Scalar neutral_element(ReduceOp op, c10::ScalarType dtype) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::bor:
    case ReduceOp::bxor: return 0;
    case ReduceOp::product: return 1;
    case ReduceOp::max: return limit(dtype, true);
    case ReduceOp::min: return limit(dtype, false);
    case ReduceOp::band: return c10::isSignedType(dtype) ? c10::Scalar(-1) : limit(dtype, false);
    case ReduceOp::avg: break;
  }
  TORCH_INTERNAL_ASSERT(false, "an average has no neutral element");
}

bool holds_value(ReduceOp op, int64_t position) {
  return position == 0 || !(op == ReduceOp::sum || op == ReduceOp::product || op == ReduceOp::bxor);
}

bool holds_value(const Layout& layout, c10::ArrayRef<int64_t> coordinate) { return !deciding(layout, coordinate); }

at::Tensor share_of(const at::Tensor& value, ReduceOp op, int64_t position) {
  return holds_value(op, position) ? value : at::empty_like(value).fill_(neutral_element(op, value.scalar_type()));
}

c10::Scalar share_of(const c10::Scalar& value, const Layout& layout, c10::ArrayRef<int64_t> coordinate) {
  auto op = deciding(layout, coordinate);
  return op ? neutral_element(*op, value.type()) : value;
}

at::Tensor part_of(const at::Tensor& tensor, const Placement& placement, int64_t parts, int64_t index) {
  auto dim = cut_dim(placement);
  auto runs = cut_once({{0, tensor.size(dim)}}, placement, parts, index);
  if (runs.empty()) return tensor.narrow(dim, 0, 0);
  if (runs.size() == 1) return tensor.narrow(dim, runs[0].begin, runs[0].size());
  std::vector<at::Tensor> pieces;
  for (auto& run : runs) pieces.push_back(tensor.narrow(dim, run.begin, run.size()));
  return at::cat(pieces, dim);
}

std::vector<at::Tensor> parts_in_order(const at::Tensor& tensor, const Placement& placement, int64_t parts) {
  std::vector<at::Tensor> result;
  auto dim = cut_dim(placement);
  auto first = part_of(tensor, placement, parts, 0).size(dim);
  if (is_shard(placement) && first > 0) {  // all parts but the last are as long as the first
    auto full = tensor.size(dim) / first;
    auto sizes = tensor.sizes().vec(), strides = tensor.strides().vec();
    sizes[dim] = first;
    sizes.insert(sizes.begin(), full);
    strides.insert(strides.begin(), first * tensor.stride(dim));
    result.push_back(tensor.as_strided(sizes, strides));
    if (full * first < tensor.size(dim))
      result.push_back(tensor.narrow(dim, full * first, tensor.size(dim) - full * first));
    return result;
  }
  for (int64_t j = 0; j < parts; ++j) result.push_back(part_of(tensor, placement, parts, j));
  return result;
}

at::Tensor shard_of(const at::Tensor& whole, const Layout& layout, c10::ArrayRef<int64_t> coordinate) {
  auto result = whole;
  for (size_t axis = 0; axis < layout.placements().size(); ++axis) {
    auto& placement = layout.placements()[axis];
    if (is_partial(placement)) result = share_of(result, collective_op(placement), coordinate[axis]);
    if (cut_dim(placement) < 0) continue;
    result = part_of(result, placement, layout.mesh().shape()[axis], coordinate[axis]);
  }
  return result;
}

}  // namespace intarsia
