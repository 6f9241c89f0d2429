// Factors, determinants, inverses and eigenvalues of matrices.

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/ops/linalg/batched.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

using Shape = std::vector<int64_t>;
using Shapes = std::vector<Shape>;
const std::vector<size_t> kMatrices = {0};  // the input whose values an op may reject

// [..., m, n] -> [..., min(m, n)]
Shape spectrum(const OpCall& call) {
  auto shape = sizes_of(call.inputs[0]);
  auto last = shape.back();
  shape.pop_back();
  shape.back() = std::min(shape.back(), last);
  return shape;
}

Shape transposed(const OpCall& call) {
  auto shape = sizes_of(call.inputs[0]);
  std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  return shape;
}

Rule batched_with(Shapes (*shapes)(const OpCall&)) {
  return batched().with_shapes(
      [shapes](const OpCall& call) { return are_matrices(call, {0}) ? shapes(call) : Shapes(); });
}

// U, S and Vh; the matrices are column-major, and empty if they are not requested.
Shapes singular(const OpCall& call) {
  auto u = sizes_of(call.inputs[0]), vh = u;
  auto k = spectrum(call).back();
  bool full = call.bool_arg("full_matrices", false);
  u.back() = full ? u[u.size() - 2] : k;
  vh[vh.size() - 2] = full ? vh.back() : k;
  if (!call.bool_arg("compute_uv", true)) u = vh = {0};
  return {u, spectrum(call), vh};
}

Rule svd() {
  auto rule = batched_with(singular).with_dtypes([](const OpCall& call) {
    auto dtype = call.inputs[0].dtype;
    return std::vector<c10::ScalarType>{dtype, c10::toRealValueType(dtype), dtype};
  });
  rule.form.strides = [](const OpCall& call) {
    auto results = singular(call);
    for (auto& result : results) {
      bool is_matrix = result.size() > 1 && result.size() == call.inputs[0].sizes.size();
      if (is_matrix) std::swap(result.end()[-1], result.end()[-2]);
      auto dense = c10::contiguous_strides(result);
      result.assign(dense.begin(), dense.end());
      if (is_matrix) std::swap(result.end()[-1], result.end()[-2]);
    }
    return results;
  };
  return rule;
}

// The error about a matrix names its number in the batch: the plain op runs on a batch as long as the whole, whose
// other matrices are valid.
void name_batch_element(LocalCall& local) {
  auto given = local.stack;
  try {
    local.call_plain();
  } catch (const c10::LinAlgError&) {
    auto mine = given[0].toTensor();
    auto& sizes = local.call.inputs[0].sizes;
    auto whole = at::eye(mine.size(-2), mine.size(-1), mine.options()).expand(sizes).clone();
    auto part = whole;
    auto offset = local_offset(*local.in[0], sizes, local.slot.coordinate);
    for (int64_t d = 0; d < mine.dim(); ++d) part = part.narrow(d, offset[d], mine.size(d));
    part.copy_(mine);
    local.stack = given;
    local.stack[0] = whole;
    local.call_plain();
    throw;
  }
}

}  // namespace

void add_factorizations(RuleTable& t) {
  t.add({"aten::linalg_cholesky_ex", "aten::linalg_lu_factor_ex", "aten::linalg_lu", "aten::_linalg_det",
         "aten::_linalg_slogdet", "aten::linalg_ldl_factor_ex", "aten::linalg_inv_ex", "aten::linalg_qr"},
        batched());
  t.add("aten::lu_unpack", batched().refusing({1}));
  t.add("aten::linalg_householder_product", batched().like_input(0).column_major());
  t.add("aten::geqrf", batched_with([](const OpCall& call) {
                         return Shapes{sizes_of(call.inputs[0]), spectrum(call)};
                       }).column_major());
  auto triangle = batched().like_input(0).column_major().with_local(name_batch_element).refusing(kMatrices);
  t.add("aten::cholesky", triangle, Versions{.until = 14});
  t.add("aten::cholesky_inverse", triangle);
  t.add("aten::_linalg_eigh", batched().with_local(name_batch_element).refusing(kMatrices));
  t.add("aten::_linalg_svd", svd().with_local(name_batch_element).refusing(kMatrices));
  t.add("aten::_linalg_eigvals",
        batched_with([](const OpCall& call) { return Shapes{spectrum(call)}; }).refusing(kMatrices));
  t.add("aten::linalg_eig",
        batched_with([](const OpCall& call) { return Shapes{spectrum(call), sizes_of(call.inputs[0])}; })
            .column_major(1)
            .with_local(name_batch_element)
            .refusing(kMatrices));
  t.add("aten::linalg_pinv.atol_rtol_tensor",
        batched_with([](const OpCall& call) { return Shapes{transposed(call)}; })
            .with_dtypes([](const OpCall& call) { return std::vector<c10::ScalarType>{call.inputs[0].dtype}; })
            .with_local(name_batch_element)
            .refusing(kMatrices));
}

}  // namespace intarsia
