// Products of matrices and vectors, and what is added to them.

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "intarsia/ops/matmul/linear.h"
#include "intarsia/propagate/forms.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// For integers, beta and alpha are converted to integers; but not by a kernel that has nothing to multiply, as on a
// rank that holds nothing of the contracted dim.
void add_product(LocalCall& local) {
  auto& schema = local.call.schema;
  bool whole = at::isIntegralType(local.call.inputs[0].dtype, true);
  for (auto name : {"beta", "alpha"}) {
    auto arg = schema.argumentIndexWithName(name);
    if (arg && whole) local.stack[*arg] = local.stack[*arg].toScalar().toLong();
  }
  local.call_plain();
}

// addmm(c, a, b) = beta * c + alpha * (a @ b). Sharding the contracted dim would leave a pending sum on the product
// only, so c must be pending as well. c broadcasts against the product.
Rule add_einsum(const std::string& equation) {
  auto product = einsum(equation);
  Rule rule = rows("add " + product.family, [product](const OpCall& call) {
    std::vector<TensorForm> factors = {call.inputs[1], call.inputs[2]};
    OpCall inner{call.schema, call.args, factors, call.outputs};
    auto& c = call.inputs[0];
    Rows rows;
    for (auto& row : product.rows(inner)) {
      Placement first = row.out[0];
      if (auto dim = cut_dim(first); dim >= 0) {
        auto own = dim - (call.outputs[0].dim() - c.dim());
        first = own >= 0 && c.sizes[own] == call.outputs[0].sizes[dim] ? S(own) : R;
      }
      rows.push_back({{first, row.in[0], row.in[1]}, row.out});
    }
    return rows;
  });
  rule.aligned = true;
  rule.form.check = [](const OpCall& call) { check_expands(call.inputs[0], call.outputs[0].sizes); };
  rule.local.plain_does = [](const OpCall& call, auto, auto, auto&) {
    return !at::isIntegralType(call.inputs[0].dtype, true);
  };
  return std::move(rule).with_local(add_product);
}

// LibTorch cannot run addbmm on tensors without data.
std::vector<std::vector<int64_t>> sum_of_products(const OpCall& call) {
  auto &a = call.inputs[1], &b = call.inputs[2];
  if (a.dim() != 3 || b.dim() != 3 || a.sizes[0] != b.sizes[0] || a.sizes[2] != b.sizes[1]) refuse_as_plain(call);
  return {{a.sizes[1], b.sizes[2]}};
}

// --- matmul

// matmul by means of dot, mv and mm; undefined for tensors with batch dims.
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

// Below autograd as well, vectors and two matrices have their own ops.
Lowering matmul(const CutCall& c) {
  auto a = c.input(0).dim(), b = c.input(1).dim();
  bool batches = a >= 2 && b >= 2 && a + b > 4;
  if (batches) return {};
  return [](Stack& stack) { stack = {small_matmul(stack[0].toTensor(), stack[1].toTensor())}; };
}

at::Tensor transposed(const at::Tensor& x) { return at::transpose(x, -2, -1).conj(); }

// Both operands have rows and columns, and one of them also has batch dims.
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

at::Tensor matmul_with_grad(const at::Tensor& a, const at::Tensor& b) {
  auto small = small_matmul(a, b);
  if (small.defined()) return small;
  if (needs_node(a, b)) return Matmul::apply(a, b);
  at::AutoDispatchBelowADInplaceOrView guard;
  return at::matmul(a, b);
}

}  // namespace

void add_matmul(RuleTable& t) {
  t.add("aten::mm", einsum("mk,kn->mn"));
  t.add("aten::bmm", einsum("bmk,bkn->bmn"));
  t.add("aten::mv", einsum("mk,k->m"));
  t.add({"aten::dot", "aten::vdot"}, einsum("k,k->"));
  t.add("aten::addmm", add_einsum("mk,kn->mn"));
  t.add("aten::baddbmm", add_einsum("bmk,bkn->bmn"));
  t.add("aten::addbmm", add_einsum("bmk,bkn->mn").with_shapes(sum_of_products).contiguous());
  t.add("aten::addmv", add_einsum("mk,k->m"));
  t.add("aten::addr", add_einsum("m,n->mn"));
  t.add("aten::matmul", einsum("...mk,...kn->...mn"));
  t.lower("aten::matmul", matmul);
  t.stays_whole("aten::matmul");
  t.gradient("aten::matmul", matmul_with_grad);
}

}  // namespace intarsia
