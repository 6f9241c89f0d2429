// torch::linalg, and its older names in torch::.

#include <ATen/ATen.h>

#include "tests/ops/composites.h"

namespace intarsia {
namespace {

using Ints = std::vector<int64_t>;

at::Tensor squares(Ints batch, int64_t n) {  // far from singular, with eigenvalues apart
  batch.push_back(n), batch.push_back(n);
  return unit(batch) + at::diag(at::arange(n, at::kDouble) + 2);
}
at::Tensor symmetric(const Ints& batch, int64_t n) {
  auto a = squares(batch, n);
  return a + a.mT();
}

void add_factorizations(const AddCalls& each, const Ints& batch) {
  auto a = squares(batch, 3), s = symmetric(batch, 3);
  auto shape = batch;
  shape.push_back(5), shape.push_back(3);
  auto tall = x(shape);
  each({"det", "linalg_det", "logdet", "slogdet", "linalg_slogdet", "inverse", "linalg_inv", "matrix_exp"}, {a});
  each({"linalg_cholesky"}, {s, false});
  each({"linalg_eigvalsh"}, {s, "L"});
  each({"linalg_svdvals"}, {tall, kNone});
  each({"linalg_lu_factor"}, {a, true});
  each({"linalg_solve"}, {a, a + 1, true});
  each({"linalg_solve_ex"}, {a, a + 1, true, false});
  each({"linalg_pinv"}, {tall, 1e-9, false});
  each({"linalg_pinv.atol_rtol_float"}, {tall, kNone, kNone, false});
  each({"pinverse"}, {tall, 1e-9});
  each({"linalg_cond"}, {a, kNone});
  each({"linalg_cond.p_str"}, {a, "fro"});
  each({"linalg_matrix_norm"}, {tall, 1, Ints{-2, -1}, false, kNone});
  each({"linalg_matrix_norm.str_ord"}, {tall, "fro", Ints{-2, -1}, true, kNone});
  each({"linalg_matrix_norm.str_ord"}, {tall, "nuc", Ints{-2, -1}, false, kNone});
  each({"linalg_norm"}, {tall, 2, Ints{-1}, false, kNone});
  each({"linalg_norm.ord_str"}, {tall, "fro", Ints{-2, -1}, false, kNone});
  each({"nuclear_norm.dim"}, {tall, Ints{-2, -1}, false});
  for (int64_t n : {-2, 0, 1, 3}) each({"matrix_power", "linalg_matrix_power"}, {a, n});
  each({"linalg_matrix_rank"}, {tall, 1e-9, false});
  each({"linalg_matrix_rank.atol_rtol_float"}, {tall, kNone, 1e-9, false});
  each({"linalg_matmul"}, {a, a + 1});
  each({"linalg_vecdot"}, {tall, tall + 1, -1});
  each({"linalg_eigh"}, {s, "L"});
  each({"linalg_svd"}, {tall, false, kNone});
  each({"svd"}, {tall, true, true});
  each({"qr"}, {tall, true});
  each({"linalg_ldl_factor"}, {s, false});
  // Vectors of which any multiple is one have no gradient of their own: values that do not depend on that choice.
  each({"linalg_eigvals"}, {s});
  each.list.back().gradient = false;
}

}  // namespace

void add_linalg_composites(std::vector<Sample>& list) {
  AddCalls each{list};
  add_factorizations(each, {});
  add_factorizations(each, {5});
  auto [lu, pivots] = at::linalg_lu_factor(squares({}, 3));
  each({"lu_solve"}, {x({3, 2}), lu, pivots});
  each({"orgqr"}, {unit({5, 3}), unit({3})});
  each({"nuclear_norm"}, {x({5, 3}), false});
  each({"linalg_multi_dot"}, {c10::List<at::Tensor>({x({5, 3}), x({3, 2}), x({2, 4})})});
  each({"linalg_tensorinv"}, {squares({}, 6).reshape({6, 2, 3}), 1});
  each({"linalg_tensorsolve"}, {squares({}, 6).reshape({6, 2, 3}), x({6}), kNone});
  each({"linalg_vander"}, {x({5}), kNone});
  each({"linalg_vander"}, {x({2, 5}), 3});
  each({"linalg_matrix_rank.tol_tensor"}, {x({5, 3}), at::scalar_tensor(1e-9, at::kDouble), false});
  each({"linalg_matrix_rank.atol_rtol_tensor"}, {x({5, 3}), at::scalar_tensor(1e-9, at::kDouble), kNone, false});
  each({"linalg_pinv.rcond_tensor"}, {x({5, 3}), at::scalar_tensor(1e-9, at::kDouble), false});
}

}  // namespace intarsia
