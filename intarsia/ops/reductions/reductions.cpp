// Reductions whose results over the shards are reduced once more: sums, products, extremes, all and any. And ops
// composed of them: trace, equal.

#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "intarsia/ops/along/layouts.h"
#include "intarsia/propagate/forms.h"
#include "intarsia/redistribute/share.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// An empty reduction has no extreme, unless the result is empty as well.
void refuse_nothing(const OpCall& call) {
  if (call.inputs[0].numel() == 0 && call.outputs[0].numel() > 0) refuse_as_plain(call);
}

// The extreme of an empty shard is the neutral element, where the plain op would raise an error.
Rule extremum(ReduceOp op) {
  return reduce(op, {op})
      .with_local([op](LocalCall& local) {
        auto self = local.stack[0].toTensor();
        auto shape = local_shape(*local.out[0], local.call.outputs[0].sizes, local.slot.coordinate);
        if (self.numel() == 0) {
          auto dtype = local.call.outputs[0].dtype;
          auto nothing = at::empty(at::IntArrayRef(shape), self.options().dtype(dtype));
          local.stack = {nothing.numel() ? nothing.fill_(neutral_element(op, dtype))
                                         : nothing};  // complex numbers have none
          return;
        }
        auto dims = local.call.dims_arg("dim", self.dim());
        bool keep = local.call.bool_arg("keepdim", false);
        auto result = op == ReduceOp::max ? at::amax(self, dims, keep) : at::amin(self, dims, keep);
        local.stack = {std::move(result)};
      })
      .checking(refuse_nothing);
}

// --- the gradient of prod, as an expression of distributed tensors: LibTorch's formula writes into plain ones

// The gradient of one factor is the product of the others: if it is the only zero, the product of the rest.
at::Tensor prod_gradient(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef dims) {
  auto zero = at::eq(self, 0);
  auto zeros = at::sum(zero, dims, true);
  auto filled = at::where(zero, at::ones_like(self), self);
  auto rest = filled;  // the product of all elements that are not zero
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
    auto dims = wrapped_dims({}, self.dim());
    if (ctx->saved_data.count("dim")) {
      dims = {at::maybe_wrap_dim(ctx->saved_data["dim"].toInt(), self.dim())};
      if (!ctx->saved_data["keep"].toBool()) grad = grad.unsqueeze(dims[0]);
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

// --- made of reductions

at::Tensor trace_of(const at::Tensor& self) {
  TORCH_CHECK(self.dim() == 2, "trace: expected a matrix, but got tensor with dim ", self.dim());
  return at::sum(at::diagonal(self));
}

Lowering trace_along(const CutCall& c) {
  if (c.input(0).dim() != 2) return {};  // the plain op's error
  return [](Stack& stack) { stack = {trace_of(stack[0].toTensor())}; };
}

Lowering equal_along(const CutCall& c) {
  if (!c.on_one_mesh() || c.input(0).dtype != c.input(1).dtype) return {};
  if (c.input(0).sizes != c.input(1).sizes) return [](Stack& stack) { stack = {false}; };
  if (c.now[0]->mesh().slots().empty()) return [](Stack& stack) { stack = {true}; };  // it holds nothing that differs
  return [](Stack& stack) { stack = {at::all(at::eq(stack[0].toTensor(), stack[1].toTensor())).item<bool>()}; };
}

void is_same_size(Stack& stack) { stack = {stack[0].toTensor().sizes() == stack[1].toTensor().sizes()}; }

}  // namespace

void add_reductions(RuleTable& t) {
  t.add({"aten::sum", "aten::sum.dim_IntList"}, reduce(ReduceOp::sum, {ReduceOp::sum, ReduceOp::avg}));
  t.add({"aten::nansum", "aten::count_nonzero", "aten::count_nonzero.dim_IntList"}, reduce(ReduceOp::sum, {}));
  t.add({"aten::amax", "aten::max"}, extremum(ReduceOp::max));
  t.add({"aten::amin", "aten::min"}, extremum(ReduceOp::min));
  t.add({"aten::all", "aten::all.dim", "aten::all.dims", "aten::_is_all_true"}, reduce(ReduceOp::band, {}));
  t.add({"aten::any", "aten::any.dim", "aten::any.dims", "aten::_is_any_true"}, reduce(ReduceOp::bor, {}));

  t.add({"aten::prod", "aten::prod.dim_int"}, reduce(ReduceOp::product, {ReduceOp::product}));
  t.gradient("aten::prod", prod_of_all);
  t.gradient("aten::prod.dim_int", prod_along);

  t.lower("aten::trace", trace_along);
  t.gradient("aten::trace", trace_of);
  t.lower("aten::equal", equal_along);
  t.always("aten::is_same_size", is_same_size);
}

}  // namespace intarsia
