// Gradients whose formulas in LibTorch write into plain tensors, here as expressions of distributed ones.

#include <cmath>

#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "intarsia/tensor/composites.h"

namespace intarsia {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor sum_from_behind(const at::Tensor& x, int64_t dim) { return at::flip(at::cumsum(at::flip(x, dim), dim), dim); }

// The gradient of position i sums, over the products that hold it, the product without it. Before the first zero of a line
// that is the product divided by x[i]; at the first zero it is the product with a one in its place; after it, nothing.
at::Tensor cumprod_gradient(const at::Tensor& grad, const at::Tensor& self, int64_t dim) {
  if (self.dim() == 0 || self.size(dim) == 1) return grad;
  auto zero = at::eq(self, 0);
  auto zeros_so_far = at::cumsum(zero, dim);
  auto first = at::logical_and(zero, at::eq(zeros_so_far, 1));
  auto one = at::ones_like(self);
  auto before = at::div(sum_from_behind(at::mul(grad, at::cumprod(self, dim).conj()), dim), at::where(zero, one, self).conj());
  auto at_first = sum_from_behind(at::mul(grad, at::cumprod(at::where(first, one, self), dim).conj()), dim);
  auto nothing = at::zeros_like(before);
  return at::where(at::eq(zeros_so_far, 0), before, at::where(first, at_first, nothing));
}

struct Cumprod : torch::autograd::Function<Cumprod> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype) {
    ctx->save_for_backward({self});
    ctx->saved_data["dim"] = dim;
    at::AutoDispatchBelowADInplaceOrView guard;
    return at::cumprod(self, dim, dtype);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto self = ctx->get_saved_variables()[0];
    auto wide = self.to(grads[0].scalar_type());
    auto grad = cumprod_gradient(grads[0], wide, ctx->saved_data["dim"].toInt());
    return {grad.to(self.scalar_type()), {}, {}};
  }
};

at::Tensor cumprod(const at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype) {
  return Cumprod::apply(self, dim, dtype);
}

// The gradient of one factor is the product of the others: where it is the only zero, the product of the rest.
at::Tensor prod_gradient(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef dims) {
  auto zero = at::eq(self, 0);
  auto zeros = at::sum(zero, dims, true);
  auto filled = at::where(zero, at::ones_like(self), self);
  auto rest = filled;  // the product of all that are not zero
  for (auto d : dims) rest = at::prod(rest, d, true);
  auto alone = at::logical_and(zero, at::eq(zeros, 1)), none = at::eq(zeros, 0);
  auto nothing = at::zeros_like(self);
  auto others = at::where(alone, rest, at::where(none, at::div(rest, filled), nothing));
  return at::mul(grad, others.conj());
}

struct Prod : torch::autograd::Function<Prod> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& self, std::optional<int64_t> dim, bool keep,
                            std::optional<at::ScalarType> dtype) {
    ctx->save_for_backward({self});
    if (dim) ctx->saved_data["dim"] = *dim;
    ctx->saved_data["keep"] = keep;
    at::AutoDispatchBelowADInplaceOrView guard;
    return dim ? at::prod(self, *dim, keep, dtype) : at::prod(self, dtype);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto self = ctx->get_saved_variables()[0];
    auto grad = grads[0];
    auto wide = self.to(grad.scalar_type());
    if (self.dim() == 0) return {grad.to(self.scalar_type()), {}, {}, {}};
    std::vector<int64_t> dims;
    if (ctx->saved_data.count("dim")) {
      dims = {at::maybe_wrap_dim(ctx->saved_data["dim"].toInt(), self.dim())};
      if (!ctx->saved_data["keep"].toBool()) grad = grad.unsqueeze(dims[0]);
    } else {
      for (int64_t d = 0; d < self.dim(); ++d) dims.push_back(d);
    }
    return {prod_gradient(grad, wide, dims).to(self.scalar_type()), {}, {}, {}};
  }
};

at::Tensor prod_of_all(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return Prod::apply(self, std::optional<int64_t>(), false, dtype);
}

at::Tensor prod_along(const at::Tensor& self, int64_t dim, bool keep, std::optional<at::ScalarType> dtype) {
  return Prod::apply(self, std::optional<int64_t>(dim), keep, dtype);
}

at::Tensor trace(const at::Tensor& self) {
  TORCH_CHECK(self.dim() == 2, "trace: expected a matrix, but got tensor with dim ", self.dim());
  return at::sum(at::diagonal(self));
}

// exp([[A, G], [0, A]]) has the derivative of exp at A along G in its upper right corner.
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

// The gradient of a gate, in parts where it is itself to be differentiated.
at::Tensor glu_backward(const at::Tensor& grad, const at::Tensor& self, int64_t dim) {
  bool twice = at::GradMode::is_enabled() && (grad.requires_grad() || self.requires_grad());
  if (!twice) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return at::glu_backward(grad, self, dim);
  }
  auto half = self.size(dim) / 2;
  auto value = at::slice(self, dim, 0, half), gate = at::sigmoid(at::slice(self, dim, half, 2 * half));
  auto open = at::mul(grad, gate);
  return at::cat({open, at::mul(at::mul(open, value), at::rsub(gate, 1))}, dim);
}

// The grid is linear in theta, so each of the two ops is the gradient of the other.
struct AffineGridBackward : torch::autograd::Function<AffineGridBackward> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& grad, at::IntArrayRef size, bool align_corners) {
    ctx->saved_data["size"] = size.vec();
    ctx->saved_data["align_corners"] = align_corners;
    at::AutoDispatchBelowADInplaceOrView guard;
    return at::affine_grid_generator_backward(grad, size, align_corners);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto size = ctx->saved_data["size"].toIntVector();
    return {at::affine_grid_generator(grads[0], size, ctx->saved_data["align_corners"].toBool()), {}, {}};
  }
};

at::Tensor affine_grid_backward(const at::Tensor& grad, at::IntArrayRef size, bool align_corners) {
  return AffineGridBackward::apply(grad, size, align_corners);
}

// log of the multivariate gamma function: a product of gamma functions, half a step apart.
at::Tensor mvlgamma(const at::Tensor& self, int64_t p) {
  TORCH_CHECK(p >= 1, "p has to be greater than or equal to 1");
  auto x = self.contiguous();  // so that the result is, as the plain op's
  auto result = at::lgamma(x);
  for (int64_t j = 1; j < p; ++j) result = at::add(result, at::lgamma(at::sub(x, 0.5 * static_cast<double>(j))));
  return at::add(result, static_cast<double>(p * (p - 1)) * std::log(M_PI) / 4);
}

}  // namespace

void register_gradients(torch::Library& aten_autograd) {
  aten_autograd.impl("cumprod", cumprod);
  aten_autograd.impl("prod", prod_of_all);
  aten_autograd.impl("prod.dim_int", prod_along);
  aten_autograd.impl("trace", trace);
  aten_autograd.impl("linalg_matrix_exp", matrix_exp);
  aten_autograd.impl("affine_grid_generator_backward", affine_grid_backward);
  aten_autograd.impl("mvlgamma", mvlgamma);
  aten_autograd.impl("glu_backward", glu_backward);
}

}  // namespace intarsia
