#include "intarsia/tensor/linear.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

namespace intarsia {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// contract(a [..., n], b [..., k]) = sum over all leading dims of a * b, [n, k]: the gradient of a weight.
at::Tensor contract_values(const at::Tensor& a, const at::Tensor& b) {
  auto n = a.size(-1), k = b.size(-1), rows = c10::multiply_integers(a.sizes().slice(0, a.dim() - 1));
  return at::mm(a.reshape({rows, n}).t(), b.reshape({rows, k}));
}

at::Tensor contract(const at::Tensor& a, const at::Tensor& b) {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("intarsia::contract", "").typed<at::Tensor(
      const at::Tensor&, const at::Tensor&)>();
  return op.call(a, b);
}

at::Tensor transposed(const at::Tensor& x) { return at::transpose(x, -2, -1).conj(); }

struct Contract : torch::autograd::Function<Contract> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a, const at::Tensor& b) {
    ctx->save_for_backward({a, b});
    at::AutoDispatchBelowADInplaceOrView guard;
    return contract(a, b);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    variable_list result(2);
    if (ctx->needs_input_grad(0)) result[0] = at::linear(saved[1].conj(), grads[0]);
    if (ctx->needs_input_grad(1)) result[1] = at::matmul(saved[0].conj(), grads[0]);
    return result;
  }
};

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["bias"] = bias && bias->defined();
    at::AutoDispatchBelowADInplaceOrView guard;
    return at::linear(x, weight, bias);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    auto& grad = grads[0];
    variable_list result(3);
    if (ctx->needs_input_grad(0)) result[0] = at::matmul(grad, saved[1].conj());
    if (ctx->needs_input_grad(1)) result[1] = contract(grad, saved[0].conj());
    bool bias = ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2);
    if (bias) result[2] = at::sum_to(grad, grad.sizes().slice(grad.dim() - 1));
    return result;
  }
};

// Both operands have rows and columns, and one of them has batch dims, too.
struct Matmul : torch::autograd::Function<Matmul> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a, const at::Tensor& b) {
    ctx->save_for_backward({a, b});
    at::AutoDispatchBelowADInplaceOrView guard;
    return at::matmul(a, b);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    auto &a = saved[0], &b = saved[1], &grad = grads[0];
    variable_list result(2);
    bool weight = b.dim() == 2;
    if (ctx->needs_input_grad(0)) {
      result[0] = weight ? at::linear(grad, b.conj()) : at::sum_to(at::matmul(grad, transposed(b)), a.sizes());
    }
    if (ctx->needs_input_grad(1)) {
      result[1] = weight ? contract(a.conj(), grad) : at::sum_to(at::matmul(transposed(a), grad), b.sizes());
    }
    return result;
  }
};

// Whether somebody may ask for a gradient, backward or forward: else a node of the graph would be made for nothing.
template <class... Tensors>
bool needs_node(const Tensors&... tensors) {
  auto followed = [](const at::Tensor& t) {
    return t.defined() && ((at::GradMode::is_enabled() && t.requires_grad()) || t._fw_grad(0).defined());
  };
  return (followed(tensors) || ...);
}

at::Tensor linear_with_grad(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  if (weight.dim() == 2 && x.dim() > 0) {
    if (needs_node(x, weight, bias ? *bias : at::Tensor())) return Linear::apply(x, weight, bias);
    at::AutoDispatchBelowADInplaceOrView guard;
    return at::linear(x, weight, bias);
  }
  auto y = at::matmul(x, weight.t());
  return bias && bias->defined() ? at::add(y, *bias) : y;
}

at::Tensor matmul_with_grad(const at::Tensor& a, const at::Tensor& b) {
  auto small = small_matmul(a, b);
  if (small.defined()) return small;
  if (needs_node(a, b)) return Matmul::apply(a, b);
  at::AutoDispatchBelowADInplaceOrView guard;
  return at::matmul(a, b);
}

at::Tensor contract_with_grad(const at::Tensor& a, const at::Tensor& b) { return Contract::apply(a, b); }

}  // namespace

at::Tensor small_matmul(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.dim() != 0 && b.dim() != 0, "both arguments to matmul need to be at least 1D, but they are ", a.dim(),
              "D and ", b.dim(), "D");
  if (a.dim() == 1 && b.dim() == 1) return at::dot(a, b);
  if (a.dim() == 2 && b.dim() == 1) return at::mv(a, b);
  if (a.dim() == 2 && b.dim() == 2) return at::mm(a, b);
  if (a.dim() == 1) return at::squeeze(at::matmul(at::unsqueeze(a, 0), b), -2);
  if (b.dim() == 1) return at::squeeze(at::matmul(a, at::unsqueeze(b, 1)), -1);
  return {};
}

void register_linear(torch::Library& aten_autograd) {
  aten_autograd.impl("linear", linear_with_grad);
  aten_autograd.impl("matmul", matmul_with_grad);
  static auto* own =
      new torch::Library(torch::Library::IMPL, "intarsia", c10::DispatchKey::Autograd, __FILE__, __LINE__);
  own->impl("contract", contract_with_grad);
}

}  // namespace intarsia

TORCH_LIBRARY_FRAGMENT(intarsia, m) {
  m.def("contract(Tensor a, Tensor b) -> Tensor");
  m.impl("contract", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, intarsia::contract_values));
}
