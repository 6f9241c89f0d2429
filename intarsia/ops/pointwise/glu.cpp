// Gated linear units, which halve a dim: the others may be sharded.

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

Rule gate(size_t tensors) {
  Rule rule = rows("scan", [tensors](const OpCall& call) {
    auto rows = independent_of(call, {call.dim_arg("dim", call.inputs[0].dim(), -1)});
    if (tensors == 2) rows.push_back({{P_sum, R}, {P_sum}});  // linear in the gradient
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// The gradient of glu, composed of ops if it is itself to be differentiated: LibTorch's formula writes into plain
// tensors.
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

}  // namespace

void add_glu(RuleTable& t) {
  t.add("aten::glu", gate(1));
  t.add("aten::glu_backward", gate(2).like_input(1));
  t.gradient("aten::glu_backward", glu_backward);
}

}  // namespace intarsia
