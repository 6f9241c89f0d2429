#include "intarsia/ops/matmul/linear.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Whether a bias has one number per output. One that broadcasts is added like any tensor.
bool is_usual(at::IntArrayRef bias, int64_t outputs) { return bias.size() == 1 && bias[0] == outputs; }

// linear(x [..., k], weight [n, k], bias [n]): as addmm, with any number of leading dims, which stay as they are.
Rule linear_rule() {
  Rule rule = rows("add einsum ...k,nk->...n", [](const OpCall& call) {
    auto last = call.inputs[0].dim() - 1;
    bool bias = call.inputs[2].defined;
    if (bias && !is_usual(call.inputs[2].sizes, call.inputs[1].sizes[0])) return Rows();
    auto with_bias = [&](const Placement& p) { return bias ? p : R; };
    Rows rows = {{{R, S(0), with_bias(S(0))}, {S(last)}}, {{S(last), S(1), with_bias(P_sum)}, {P_sum}}};
    for (int64_t d = 0; d < last; ++d) rows.push_back({{S(d), R, R}, {S(d)}});
    for (auto& pending : {P_sum, P_avg}) {
      rows.push_back({{pending, R, with_bias(pending)}, {pending}});
      rows.push_back({{R, pending, with_bias(pending)}, {pending}});
    }
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// contract(a [..., n], b [..., k]) -> [n, k]: leading dims are contracted.
Rule contract_rule() {
  Rule rule = rows("einsum ...n,...k->nk", [](const OpCall& call) {
    auto last = call.inputs[0].dim() - 1;
    Rows rows = {{{S(last), R}, {S(0)}}, {{R, S(last)}, {S(1)}}};
    for (int64_t d = 0; d < last; ++d) rows.push_back({{S(d), S(d)}, {P_sum}});
    for (auto& pending : {P_sum, P_avg}) {
      rows.push_back({{pending, R}, {pending}});
      rows.push_back({{R, pending}, {pending}});
    }
    return rows;
  });
  rule.aligned = true;
  return rule;
}

at::Tensor contract_values(const at::Tensor& a, const at::Tensor& b) {
  auto n = a.size(-1), k = b.size(-1), rows = c10::multiply_integers(a.sizes().slice(0, a.dim() - 1));
  return at::mm(a.reshape({rows, n}).t(), b.reshape({rows, k}));
}

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

at::Tensor contract_with_grad(const at::Tensor& a, const at::Tensor& b) { return Contract::apply(a, b); }

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

at::Tensor linear_with_grad(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  bool biased = bias && bias->defined();
  if (weight.dim() == 2 && x.dim() > 0 && (!biased || is_usual(bias->sizes(), weight.size(0)))) {
    if (needs_node(x, weight, bias ? *bias : at::Tensor())) return Linear::apply(x, weight, bias);
    at::AutoDispatchBelowADInplaceOrView guard;
    return at::linear(x, weight, bias);
  }
  auto y = at::matmul(x, weight.t());
  if (biased && !at::is_expandable_to(bias->sizes(), y.sizes())) bias->expand(y.sizes());  // raises expand's error
  return biased ? at::add(y, *bias) : y;
}

// bilinear(x1 [..., i], x2 [..., j], weight [o, i, j]): leading dims are never flattened, so a sharded batch stays
// sharded.
at::Tensor bilinear(const at::Tensor& x1, const at::Tensor& x2, const at::Tensor& weight,
                    const std::optional<at::Tensor>& bias) {
  TORCH_CHECK(weight.dim() == 3 && x1.dim() > 0 && x2.dim() == x1.dim(),
              "bilinear(): weight must be 3D and the inputs of equal ", "dims. Got weight ", weight.sizes(),
              ", inputs ", x1.sizes(), " and ", x2.sizes());
  auto o = weight.size(0), i = weight.size(1), j = weight.size(2);
  TORCH_CHECK(x1.size(-1) == i && x2.size(-1) == j, "bilinear(): the weight ", weight.sizes(), " does not fit inputs ",
              x1.sizes(), " and ", x2.sizes());
  auto half = at::linear(x2, weight.reshape({o * i, j}));  // [..., o * i]
  auto shape = half.sizes().vec();
  shape.back() = o;
  shape.push_back(i);
  auto y = at::sum(at::mul(half.view(shape), x1.unsqueeze(-2)), -1);
  return bias && bias->defined() ? at::add(y, *bias) : y;
}

}  // namespace

at::Tensor contract(const at::Tensor& a, const at::Tensor& b) {
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("intarsia::contract", "")
                       .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  return op.call(a, b);
}

void add_linear(RuleTable& t) {
  t.add("aten::linear", linear_rule());
  t.stays_whole("aten::linear");
  t.gradient("aten::linear", linear_with_grad);
  t.composite("aten::bilinear", bilinear);
  t.add("intarsia::contract", contract_rule());
}

}  // namespace intarsia

// Our own op: values and gradient on any tensor. On distributed tensors, its rule applies.
TORCH_LIBRARY_FRAGMENT(intarsia, m) {
  m.def("contract(Tensor a, Tensor b) -> Tensor");
  m.impl("contract", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, intarsia::contract_values));
  m.impl("contract", torch::dispatch(c10::DispatchKey::Autograd, intarsia::contract_with_grad));
}
