// Special functions and rarer pointwise ops: every dim may be sharded; nothing pending passes unless a comment says
// why.

#include <cmath>

#include <ATen/ATen.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

void add_plain(RuleTable& t, std::initializer_list<const char*> ops) {
  for (auto op : ops) t.add(std::string("aten::") + op, pointwise());
}

// f(x, n) for tensors, or with a number in place of one of them.
void add_polynomial(RuleTable& t, const std::string& name) {
  for (auto overload : {"", ".x_scalar", ".n_scalar"}) t.add("aten::special_" + name + overload, pointwise());
}

// log of the multivariate gamma function: a product of gamma functions, half a step apart. LibTorch's formula writes
// into a plain tensor.
at::Tensor mvlgamma(const at::Tensor& self, int64_t p) {
  TORCH_CHECK(p >= 1, "p has to be greater than or equal to 1");
  auto x = self.contiguous();  // so that the result is contiguous, as the plain op's
  auto result = at::lgamma(x);
  for (int64_t j = 1; j < p; ++j) result = at::add(result, at::lgamma(at::sub(x, 0.5 * static_cast<double>(j))));
  return at::add(result, static_cast<double>(p * (p - 1)) * std::log(M_PI) / 4);
}

}  // namespace

void add_special(RuleTable& t) {
  add_plain(t, {"special_airy_ai", "special_bessel_j0", "special_bessel_j1", "special_bessel_y0", "special_bessel_y1",
                "special_modified_bessel_i0", "special_modified_bessel_i1", "special_modified_bessel_k0",
                "special_modified_bessel_k1", "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1",
                "special_spherical_bessel_j0", "frexp.Tensor"});
  for (auto name : {"chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v",
                    "chebyshev_polynomial_w", "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l",
                    "legendre_polynomial_p", "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u",
                    "shifted_chebyshev_polynomial_v", "shifted_chebyshev_polynomial_w"}) {
    add_polynomial(t, name);
  }
  add_plain(t, {"special_zeta", "special_zeta.self_scalar", "special_zeta.other_scalar", "special_xlog1py.self_scalar",
                "special_xlog1py.other_scalar", "bitwise_and.Scalar_Tensor", "bitwise_or.Scalar_Tensor",
                "bitwise_xor.Scalar_Tensor", "bitwise_left_shift.Scalar_Tensor", "bitwise_right_shift.Scalar_Tensor",
                "__lshift__.Tensor", "__lshift__.Scalar", "__rshift__.Tensor", "__rshift__.Scalar",
                "_standard_gamma_grad", "_add_relu.Tensor", "_add_relu.Scalar"});
  t.add("aten::mvlgamma", pointwise().contiguous());
  t.gradient("aten::mvlgamma", mvlgamma);
  t.add("aten::log_sigmoid_forward", pointwise().contiguous());
  // Conjugation is real-linear.
  t.add({"aten::_conj_physical", "aten::conj_physical"}, pointwise({{{P_sum}, {P_sum}}, {{P_avg}, {P_avg}}}));
  // Linear in the gradient, which comes first.
  t.add({"aten::log_sigmoid_backward", "aten::_prelu_kernel_backward", "aten::rrelu_with_noise_backward"},
        pointwise(linear_in_first(3)));
}

}  // namespace intarsia
