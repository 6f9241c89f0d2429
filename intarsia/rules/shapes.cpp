// The results' shapes of ops that have a rule but that LibTorch cannot run on tensors without data.
// A call that the plain op would refuse gets no answer: the plain op speaks for itself.

#include <algorithm>

#include <ATen/ExpandUtils.h>
#include <c10/core/WrapDimMinimal.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

using Shape = std::vector<int64_t>;
using Shapes = std::vector<Shape>;
using Dtypes = std::vector<c10::ScalarType>;

Shape shape_of(const OpCall& call, size_t input) { return sizes_of(call.inputs[input]); }

int64_t dim_in(const OpCall& call, const char* name, int64_t ndim) {
  return c10::maybe_wrap_dim(call.int_arg(name, -1), ndim);
}

// The first result has the shape and the dtype of an input.
void like_input(Rule& rule, size_t input) {
  rule.shapes = [input](const OpCall& call) -> Shapes { return {shape_of(call, input)}; };
  rule.dtypes = [input](const OpCall& call) -> Dtypes { return {call.inputs[input].dtype}; };
}

// The results are contiguous even where the input is not.
void contiguous(Rule& rule) {
  rule.strides = [shapes = rule.shapes](const OpCall& call) {
    auto strides = shapes(call);
    for (auto& result : strides) {
      auto dense = c10::contiguous_strides(result);
      result.assign(dense.begin(), dense.end());
    }
    return strides;
  };
}

// The same, but the op itself tells the dtypes.
void shaped_like_input(Rule& rule, size_t input) {
  rule.shapes = [input](const OpCall& call) -> Shapes { return {shape_of(call, input)}; };
}

// The shape alone is other; the dtype is that of the first input, which has at least `ndim` dims.
void reshaped(Rule& rule, int64_t ndim, Shape (*shape)(const OpCall&)) {
  rule.shapes = [shape, ndim](const OpCall& call) -> Shapes {
    return call.inputs[0].dim() < ndim ? Shapes() : Shapes{shape(call)};
  };
  rule.dtypes = [](const OpCall& call) -> Dtypes { return {call.inputs[0].dtype}; };
}

Shape shuffled(const OpCall& call, int64_t factor, bool up) {
  auto shape = shape_of(call, 0);
  auto n = shape.size();
  auto area = factor * factor;
  shape[n - 3] = up ? shape[n - 3] / area : shape[n - 3] * area;
  for (auto d : {n - 2, n - 1}) shape[d] = up ? shape[d] * factor : shape[d] / factor;
  return shape;
}

Shape turned(const OpCall& call) {
  auto shape = shape_of(call, 0);
  auto dims = call.dims_arg("dims", call.inputs[0].dim());
  if (call.int_arg("k", 1) % 2 != 0 && dims.size() == 2) std::swap(shape[dims[0]], shape[dims[1]]);
  return shape;
}

Shape selected(const OpCall& call) {
  auto shape = shape_of(call, 0);
  if (!shape.empty()) shape[dim_in(call, "dim", shape.size())] = call.inputs[1].numel();
  return shape;
}

Shape embedded_diagonal(const OpCall& call) {
  auto shape = shape_of(call, 0);
  auto length = shape.back() + std::abs(call.int_arg("offset", 0));
  shape.pop_back();
  auto ndim = static_cast<int64_t>(shape.size()) + 2;
  auto first = c10::maybe_wrap_dim(call.int_arg("dim1", -2), ndim), second = c10::maybe_wrap_dim(call.int_arg("dim2", -1), ndim);
  for (auto dim : {std::min(first, second), std::max(first, second)}) shape.insert(shape.begin() + dim, length);
  return shape;
}

Shape given_sizes(const OpCall& call) { return call.arg("input_sizes").toIntVector(); }

// mode(dim, keepdim) gives values and places.
Shapes picked(const OpCall& call) {
  auto shape = shape_of(call, 0);
  if (shape.empty()) return {shape, shape};
  auto dim = dim_in(call, "dim", shape.size());
  if (call.bool_arg("keepdim", false)) shape[dim] = 1;
  else shape.erase(shape.begin() + dim);
  return {shape, shape};
}

bool are_matrices(const OpCall& call, std::initializer_list<size_t> inputs) {
  return std::all_of(inputs.begin(), inputs.end(), [&](size_t i) { return call.inputs[i].dim() >= 2; });
}

Shapes distances(const OpCall& call) {
  if (!are_matrices(call, {0, 1})) return {};
  auto x1 = shape_of(call, 0), x2 = shape_of(call, 1);
  auto shape = at::infer_size(at::IntArrayRef(x1).slice(0, x1.size() - 2), at::IntArrayRef(x2).slice(0, x2.size() - 2));
  shape.push_back(x1[x1.size() - 2]);
  shape.push_back(x2[x2.size() - 2]);
  return {shape};
}

// [..., m, n] -> [..., min(m, n)]
Shape spectrum(const OpCall& call) {
  auto shape = shape_of(call, 0);
  auto last = shape.back();
  shape.pop_back();
  shape.back() = std::min(shape.back(), last);
  return shape;
}

Shape transposed(const OpCall& call) {
  auto shape = shape_of(call, 0);
  std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  return shape;
}

// matrices [..., m, m] and right-hand sides [..., m, k]
Shapes solution(const OpCall& call, size_t matrices, size_t sides) {
  if (!are_matrices(call, {0, 1})) return {};
  auto a = shape_of(call, matrices), b = shape_of(call, sides);
  auto shape = at::infer_size(at::IntArrayRef(a).slice(0, a.size() - 2), at::IntArrayRef(b).slice(0, b.size() - 2));
  shape.insert(shape.end(), b.end() - 2, b.end());
  return {shape};
}

// A real signal keeps half of the last transformed dim, which comes back by name.
Shapes transformed(const OpCall& call) {
  auto shape = shape_of(call, 0);
  auto dims = call.dims_arg("dim", call.inputs[0].dim());
  if (dims.empty()) return {};
  if (call.bool_arg("onesided", false)) shape[dims.back()] = shape[dims.back()] / 2 + 1;
  if (call.arg_index("last_dim_size") >= 0) shape[dims.back()] = call.int_arg("last_dim_size", 0);
  return {shape};
}

Dtypes with_places(const OpCall& call) { return {call.inputs[0].dtype, at::kLong}; }
Dtypes complex_of(const OpCall& call) { return {c10::toComplexType(call.inputs[0].dtype)}; }
Dtypes real_of(const OpCall& call) { return {c10::toRealValueType(call.inputs[0].dtype)}; }

}  // namespace

void add_shapes(RuleTable& t) {
  for (auto op : {"aten::flip", "aten::roll", "aten::channel_shuffle", "aten::select_scatter", "aten::slice_scatter",
                  "aten::diagonal_scatter", "aten::logcumsumexp", "aten::_logcumsumexp", "aten::cholesky", "aten::cholesky_inverse",
                  "aten::linalg_householder_product"}) {
    like_input(t[op], 0);
  }
  for (auto op : {"aten::glu_backward", "aten::_cdist_backward"}) like_input(t[op], 1);
  like_input(t["aten::ormqr"], 2);
  shaped_like_input(t["aten::bucketize.Tensor"], 0);
  shaped_like_input(t["aten::searchsorted.Tensor"], 1);
  reshaped(t["aten::index_select"], 0, selected);
  reshaped(t["aten::diag_embed"], 1, embedded_diagonal);
  reshaped(t["aten::unfold_backward"], 0, given_sizes);
  reshaped(t["aten::pixel_shuffle"], 3, [](auto& call) { return shuffled(call, call.int_arg("upscale_factor", 1), true); });
  reshaped(t["aten::pixel_unshuffle"], 3, [](auto& call) { return shuffled(call, call.int_arg("downscale_factor", 1), false); });
  reshaped(t["aten::linalg_pinv.atol_rtol_tensor"], 2, transposed);
  for (auto op : {"aten::mode", "aten::kthvalue", "aten::median.dim", "aten::nanmedian.dim"}) {
    t[op].shapes = picked;
    t[op].dtypes = with_places;
  }
  for (auto op : {"aten::cummax", "aten::cummin"}) {
    t[op].dtypes = with_places;
    t[op].shapes = [](const OpCall& call) -> Shapes { return {shape_of(call, 0), shape_of(call, 0)}; };
  }
  reshaped(t["aten::rot90"], 2, turned);
  for (auto op : {"aten::bucketize.Scalar", "aten::searchsorted.Scalar"}) {
    t[op].shapes = [](const OpCall&) -> Shapes { return {{}}; };
  }
  for (auto op : {"aten::_fft_c2c", "aten::_fft_r2c", "aten::_fft_c2r"}) t[op].shapes = transformed;
  for (auto op : {"aten::_fft_c2c", "aten::_fft_r2c"}) t[op].dtypes = complex_of;
  t["aten::_fft_c2r"].dtypes = real_of;
  for (auto op : {"aten::roll", "aten::channel_shuffle", "aten::logcumsumexp", "aten::_logcumsumexp", "aten::cummax",
                  "aten::cummin", "aten::log_sigmoid_forward", "aten::mvlgamma"}) {
    contiguous(t[op]);
  }
  t["aten::_cdist_forward"].shapes = distances;
  t["aten::linalg_solve_triangular"].shapes = [](auto& call) { return solution(call, 0, 1); };
  t["aten::cholesky_solve"].shapes = [](auto& call) { return solution(call, 1, 0); };
  t["aten::addbmm"].shapes = [](const OpCall& call) -> Shapes {
    if (call.inputs[1].dim() != 3 || call.inputs[2].dim() != 3) return {};
    return {{call.inputs[1].sizes[1], call.inputs[2].sizes[2]}};
  };
  contiguous(t["aten::addbmm"]);
  t["aten::geqrf"].shapes = [](const OpCall& call) -> Shapes {
    return are_matrices(call, {0}) ? Shapes{shape_of(call, 0), spectrum(call)} : Shapes();
  };
  t["aten::linalg_eig"].shapes = [](const OpCall& call) -> Shapes {
    return are_matrices(call, {0}) ? Shapes{spectrum(call), shape_of(call, 0)} : Shapes();
  };
  t["aten::_linalg_eigvals"].shapes = [](const OpCall& call) -> Shapes {
    return are_matrices(call, {0}) ? Shapes{spectrum(call)} : Shapes();
  };
}

}  // namespace intarsia
