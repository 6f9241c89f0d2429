// Functions of whole matrices: exponentials, powers, ranks.

#include <algorithm>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "intarsia/ops/along/replicated.h"
#include "intarsia/ops/linalg/batched.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// exp([[A, G], [0, A]]) has the derivative of exp at A along G in its upper right corner. LibTorch's formula writes
// into plain tensors.
struct MatrixExp : torch::autograd::Function<MatrixExp> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& self) {
    ctx->save_for_backward({self});
    at::AutoDispatchBelowADInplaceOrView guard;
    return at::linalg_matrix_exp(self);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto a = at::transpose(ctx->get_saved_variables()[0], -2, -1).conj();
    auto n = a.size(-1);
    auto block = at::cat({at::cat({a, grads[0]}, -1), at::cat({at::zeros_like(a), a}, -1)}, -2);
    return {at::slice(at::slice(at::linalg_matrix_exp(block), -2, 0, n), -1, n, 2 * n)};
  }
};

at::Tensor matrix_exp(const at::Tensor& self) { return MatrixExp::apply(self); }

// The number of singular values above the tolerance: the larger of a number and a fraction of the largest.
at::Tensor rank_of(const at::Tensor& input, const at::Tensor& atol, const at::Tensor& rtol, bool hermitian) {
  auto values = hermitian ? at::linalg_eigvalsh(input).abs() : at::linalg_svdvals(input);
  if (values.size(-1) == 0) return at::sum(values, -1).to(at::kLong);
  auto tolerance = at::maximum(atol, at::mul(rtol, at::amax(values, -1)));
  return at::sum(at::gt(values, tolerance.unsqueeze(-1)), -1);
}

at::Tensor matrix_rank_above_tensors(const at::Tensor& input, const std::optional<at::Tensor>& atol,
                                     const std::optional<at::Tensor>& rtol, bool hermitian) {
  auto real = c10::toRealValueType(input.scalar_type());
  auto number = [&](double value) { return replicated_like(at::scalar_tensor(value, at::dtype(real)), input); };
  bool above_zero = atol && at::any(at::gt(*atol, 0)).item<bool>();
  auto usual = (c10::isFloatingType(real) && real == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                                 : std::numeric_limits<float>::epsilon()) *
               static_cast<double>(std::max(input.size(-1), input.size(-2)));
  return rank_of(input, atol ? *atol : number(0), rtol ? *rtol : number(above_zero ? 0 : usual), hermitian);
}

at::Tensor matrix_rank_above(const at::Tensor& input, std::optional<double> atol, std::optional<double> rtol,
                             bool hermitian) {
  auto real = c10::toRealValueType(input.scalar_type());
  auto given = [&](std::optional<double> value) {
    if (!value) return std::optional<at::Tensor>();
    return std::optional(replicated_like(at::scalar_tensor(*value, at::dtype(real)), input));
  };
  return matrix_rank_above_tensors(input, given(atol), given(rtol), hermitian);
}

at::Tensor matrix_rank(const at::Tensor& input, double tolerance, bool hermitian) {
  return matrix_rank_above(input, tolerance, 0.0, hermitian);
}

at::Tensor matrix_rank_by_tensor(const at::Tensor& input, const at::Tensor& tolerance, bool hermitian) {
  return matrix_rank_above_tensors(input, tolerance, at::zeros_like(tolerance), hermitian);
}

}  // namespace

void add_matrix_functions(RuleTable& t) {
  t.add("aten::linalg_matrix_exp", batched().with_shapes([](const OpCall& call) {
    return std::vector<std::vector<int64_t>>{sizes_of(call.inputs[0])};
  }));
  t.gradient("aten::linalg_matrix_exp", matrix_exp);
  t.composite("aten::linalg_matrix_rank", matrix_rank);
  t.composite("aten::linalg_matrix_rank.tol_tensor", matrix_rank_by_tensor);
  t.composite("aten::linalg_matrix_rank.atol_rtol_float", matrix_rank_above);
  t.composite("aten::linalg_matrix_rank.atol_rtol_tensor", matrix_rank_above_tensors);
}

}  // namespace intarsia
