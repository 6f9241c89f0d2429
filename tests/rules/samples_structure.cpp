#include <ATen/ATen.h>

#include "tests/rules/harness.h"

namespace intarsia {
namespace {

using Args = std::vector<c10::IValue>;
using Ints = std::vector<int64_t>;
using Tensors = std::vector<at::Tensor>;

c10::IValue places(std::vector<std::optional<at::Tensor>> indices) {
  c10::List<std::optional<at::Tensor>> list;
  for (auto& index : indices) list.push_back(index);
  return list;
}

// Well away from singular.
at::Tensor square(int64_t batch, int64_t n) { return x({batch, n, n}) * 0.1 + 3 * at::eye(n, at::kDouble); }
at::Tensor symmetric(int64_t batch, int64_t n) {
  auto a = square(batch, n);
  return a + a.transpose(-1, -2);
}

}  // namespace

void add_structure_samples(std::vector<Sample>& list) {
  const c10::IValue none;
  auto each = [&](std::initializer_list<const char*> ops, const Args& args, bool values = true) {
    for (std::string op : ops) list.push_back({"aten::" + op, args, values});
  };

  each({"cat"}, {Tensors{x({5, 3}), x({2, 3})}, 0});
  each({"cat"}, {Tensors{x({5, 3}), x({5, 2}), x({5, 1})}, -1});
  each({"stack", "_stack"}, {Tensors{x({5, 3}), x({5, 3})}, 1});
  each({"flip"}, {x({5, 3, 2}), Ints{0, -1}});
  each({"flip"}, {x({5, 3}), Ints{}});
  each({"roll"}, {x({5, 3}), Ints{2}, Ints{0}});
  each({"roll"}, {x({5, 3}), Ints{2}, Ints{}});
  each({"rot90"}, {x({5, 3, 2}), 1, Ints{0, 1}});
  each({"repeat"}, {x({5, 3}), Ints{2, 1, 2}});
  each({"tril", "triu"}, {x({5, 3}), 1});
  each({"tril", "triu"}, {x({3, 4, 5}), -1});
  each({"diagonal"}, {x({5, 3, 4}), 1, 0, 2});
  each({"diagonal_backward"}, {x({3, 3}), Ints{5, 3, 4}, 1, 0, 2});
  each({"diagonal_scatter"}, {x({5, 3, 4}), x({3, 3}), 1, 0, 2});
  each({"diag_embed"}, {x({5, 3}), 0, 0, 2});
  each({"select_backward"}, {x({5, 2}), Ints{5, 3, 2}, 1, 2});
  each({"slice_backward"}, {x({5, 2}), Ints{5, 4}, 1, 0, 4, 2});
  each({"select_scatter"}, {x({5, 3}), x({5}), 1, 2});
  each({"slice_scatter"}, {x({5, 4}), x({5, 2}), 1, 1, 3, 1});
  each({"unfold"}, {x({5, 6}), 1, 3, 2});
  each({"unfold_backward"}, {x({5, 2, 3}), Ints{5, 6}, 1, 3, 2});
  each({"pixel_shuffle"}, {x({5, 4, 3, 2}), 2});
  each({"pixel_unshuffle"}, {x({5, 3, 2, 4}), 2});
  each({"narrow_copy"}, {x({5, 3}), 0, 1, 3});
  each({"channel_shuffle"}, {x({3, 4, 5, 2}), 2});
  each({"addbmm"}, {x({5, 4}), x({3, 5, 2}), x({3, 2, 4}), 1, 2});
  each({"count_nonzero"}, {x({5, 3}).relu(), none});

  // indexing
  each({"index_select"}, {x({5, 3}), 0, below(5, {4})});
  each({"index_select"}, {x({4, 2, 3}), 0, below(4, {4})});  // a result of the input's own shape
  each({"gather"}, {x({5, 3}), 1, below(3, {5, 4}), false});
  each({"gather"}, {x({5, 3}), 0, below(5, {4, 2}), false});
  each({"scatter.src", "scatter_add"},
       {x({5, 7}), 1, (below(7, {7}) * 3 % 7).narrow(0, 0, 4).repeat({5, 1}), x({5, 4})});
  each({"scatter.value"}, {x({5, 7}), 1, below(7, {5, 4}), 2});
  each({"scatter.reduce"}, {x({5, 7}), 1, below(7, {5, 4}), x({5, 4}), "add"});
  each({"scatter.value_reduce"}, {x({5, 7}), 1, below(7, {5, 4}), 2, "multiply"});
  each({"scatter_reduce.two"}, {x({5, 7}), 0, below(5, {4, 7}), x({4, 7}), "amax", true});
  each({"scatter_reduce.two"}, {x({5, 7}), 0, below(5, {4, 7}), x({4, 7}), "mean", false});
  each({"index_add"}, {x({5, 3}), 0, below(5, {4}), x({4, 3}), 2});
  each({"index_copy"}, {x({5, 3}), 0, at::arange(1, 5), x({4, 3})});
  each({"index_fill.int_Scalar"}, {x({5, 3}), 0, below(5, {2}), 2});
  each({"index_fill.int_Tensor"}, {x({5, 3}), 0, below(5, {2}), pos({})});
  each({"index_reduce"}, {x({5, 3}), 0, below(5, {4}), x({4, 3}), "amax", true});
  for (auto& indices :
       {places({below(5, {4})}), places({std::nullopt, below(3, {4})}), places({below(5, {4}), below(3, {2, 1})}),
        places({below(5, {4}), std::nullopt, below(2, {4})})}) {
    each({"index.Tensor", "_unsafe_index.Tensor"}, {x({5, 3, 2}), indices});
  }
  for (bool accumulate : {true, false}) {
    each({"index_put", "_unsafe_index_put"}, {x({5, 3, 2}), places({at::arange(4)}), x({4, 3, 2}), accumulate});
    each({"index_put"}, {x({5, 3, 2}), places({std::nullopt, at::tensor({2, -3}, at::kLong)}), x({2, 2}), accumulate});
    each({"index_put"}, {x({5, 3, 2}), places({at::arange(4), std::nullopt, at::tensor({1, 0, 1, 0}, at::kLong)}),
                         x({3}), accumulate});
    each({"_index_put_impl"}, {x({5, 3}), places({at::arange(4)}), x({4, 3}), accumulate, false});
  }

  // along a dim
  each({"cumsum", "cumprod"}, {x({5, 3}), 1, none});
  each({"logcumsumexp", "_logcumsumexp", "cummax", "cummin"}, {x({5, 3}), 1});
  each({"topk"}, {x({5, 3, 4}), 2, -1, true, true});
  each({"sort"}, {x({5, 3, 4}), 1, true});
  each({"sort.stable"}, {x({5, 3, 4}), true, 1, false});
  each({"argmax", "argmin", "max.dim", "min.dim", "median.dim", "nanmedian.dim"}, {x({5, 3, 4}), 1, false});
  each({"argmax", "argmin"}, {x({5, 3}), none, false});
  each({"max.dim"}, {x({5, 3, 4}), -1, true});
  each({"kthvalue"}, {x({5, 3, 4}), 2, 1, false});
  each({"mode"}, {x({5, 3, 4}), 1, false});
  each({"aminmax"}, {x({5, 3, 4}), 1, true});
  each({"median", "nanmedian"}, {x({5, 3})});
  each({"masked_select"}, {x({5, 3}), x({5, 3}) > 0});
  each({"nonzero"}, {x({5, 3}).relu()});
  each({"nonzero_static"}, {x({5, 3}).relu(), 4, -1});
  each({"bincount"}, {below(4, {7}), none, 0});
  each({"histc"}, {x({5, 3}), 4, 0, 0});
  each({"histc"}, {x({5, 3}), 4, -1, 1});
  each({"unique_consecutive"}, {x({5}), false, false, none});
  each({"_unique2"}, {x({5}), true, false, false});
  each({"unique_dim"}, {x({5, 3}), 0, true, false, false});
  each({"glu"}, {x({5, 4}), -1});
  each({"glu_backward"}, {x({5, 2}), x({5, 4}), 1});

  // linear algebra over batches
  each({"linalg_cholesky_ex"}, {symmetric(5, 3), false, false});
  each({"linalg_lu_factor_ex"}, {square(5, 3), true, false});
  each({"linalg_ldl_factor_ex"}, {symmetric(5, 3), false, false});
  each({"linalg_lu"}, {square(5, 3), true});
  each({"_linalg_det", "_linalg_slogdet", "linalg_eig", "_linalg_eigvals", "linalg_matrix_exp"}, {square(5, 3)});
  each({"_linalg_eigh"}, {symmetric(5, 3), "L", true});
  each({"linalg_inv_ex"}, {square(5, 3), false});
  each({"_linalg_check_errors"}, {at::zeros({5}, at::kInt), "linalg.inv", true});
  each({"_linalg_svd"}, {square(5, 3), false, true, none});
  each({"linalg_qr"}, {square(5, 3), "reduced"});
  if (has_this_libtorch({.until = 14})) each({"cholesky"}, {symmetric(5, 3), false});
  each({"cholesky_inverse"}, {square(5, 3).tril(), false});
  each({"geqrf"}, {square(5, 3)});
  each({"_linalg_solve_ex"}, {square(5, 3), x({5, 3, 2}), true, false});
  each({"linalg_solve_triangular"}, {square(5, 3).tril(), x({5, 3, 2}), false, true, false});
  each({"cholesky_solve"}, {x({5, 3, 2}), square(5, 3).tril(), false});
  each({"triangular_solve"}, {x({5, 3, 2}), square(5, 3).triu(), true, false, false});
  each({"linalg_householder_product"}, {square(5, 3), x({5, 3})});
  each({"ormqr"}, {square(5, 3), x({5, 3}), x({5, 3, 2}), true, false});
  each({"linalg_pinv.atol_rtol_tensor"}, {square(5, 3), none, none, false});
  auto [lu, pivots, info] = at::linalg_lu_factor_ex(square(5, 3));
  each({"linalg_lu_solve"}, {lu, pivots, x({5, 3, 2}), true, false});
  each({"lu_unpack"}, {lu, pivots, true, true});
  auto [ld, ld_pivots, ld_info] = at::linalg_ldl_factor_ex(symmetric(5, 3));
  each({"linalg_ldl_solve"}, {ld, ld_pivots, x({5, 3, 2}), false});
  each({"linalg_cross"}, {x({5, 3, 2}), x({5, 3, 2}), 1});
  auto near = x({3, 5, 2}), far = x({3, 4, 2});
  each({"_cdist_forward"}, {near, far, 2.0, none});
  each({"_euclidean_dist"}, {x({5, 2}), x({4, 2})});
  each({"_cdist_backward"}, {x({3, 5, 4}), near, far, 2.0, at::cdist(near, far)});
}

void add_special_samples(std::vector<Sample>& list) {
  const c10::IValue none;
  auto each = [&](std::initializer_list<const char*> ops, const Args& args) {
    for (std::string op : ops) list.push_back({"aten::" + op, args});
  };
  each({"special_airy_ai", "special_bessel_j0", "special_bessel_j1", "special_bessel_y0", "special_bessel_y1",
        "special_modified_bessel_i0", "special_modified_bessel_i1", "special_modified_bessel_k0",
        "special_modified_bessel_k1", "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1",
        "special_spherical_bessel_j0", "frexp.Tensor", "_conj_physical"},
       {pos({5, 3})});
  each({"mvlgamma"}, {pos({5, 3}) + 3, 2});
  for (std::string op :
       {"chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
        "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
        "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
        "shifted_chebyshev_polynomial_w"}) {
    list.push_back({"aten::special_" + op, {unit({5, 3}), below(4, {3}).to(at::kDouble)}});
    list.push_back({"aten::special_" + op + ".x_scalar", {0.25, below(4, {5, 3}).to(at::kDouble)}});
    list.push_back({"aten::special_" + op + ".n_scalar", {unit({5, 3}), 3}});
  }
  each({"special_zeta"}, {pos({5, 3}) + 1, pos({3})});
  each({"special_zeta.self_scalar", "special_xlog1py.self_scalar"}, {2.5, pos({5, 3})});
  each({"special_zeta.other_scalar", "special_xlog1py.other_scalar"}, {pos({5, 3}) + 1, 1.5});
  each({"bitwise_and.Scalar_Tensor", "bitwise_or.Scalar_Tensor", "bitwise_xor.Scalar_Tensor",
        "bitwise_left_shift.Scalar_Tensor", "bitwise_right_shift.Scalar_Tensor"},
       {5, below(4, {5, 3})});
  each({"__lshift__.Tensor", "__rshift__.Tensor"}, {below(9, {5, 3}), below(3, {3})});
  each({"__lshift__.Scalar", "__rshift__.Scalar"}, {below(9, {5, 3}), 2});
  auto edges = at::arange(4, at::kDouble);
  each({"bucketize.Tensor"}, {pos({5, 3}), edges, false, false});
  each({"isin.Tensor_Tensor"}, {below(5, {5, 3}), below(3, {2}), false, false});
  each({"searchsorted.Tensor"}, {edges, pos({5, 3}), false, false, none, none});
  each({"searchsorted.Tensor"}, {edges.repeat({5, 1}), pos({5, 3}), false, true, none, none});
}

}  // namespace intarsia
