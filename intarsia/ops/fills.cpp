// In-place fills of tensors that are pending sums.

#include <ATen/ATen.h>

#include "intarsia/dispatch/decide.h"
#include "intarsia/dispatch/run.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// Runs the op by its rows, without the lowering: a write that settles what is pending, or is an error.
void fill_by_rows(Stack& stack) {
  static const auto* op = new Op(c10::Dispatcher::singleton().findSchemaOrThrow("aten::masked_fill_", "Scalar"));
  CallKey unused;
  run_op(*op, stack, {&unused, decide(read_call(*op, stack))});
}

// masked_fill_(self, mask, value): with zeros in place of some terms, a sum stays a sum. Composite losses do this to
// pending sums in place. A planner does not know whether the value is zero.
void fill_sum(Stack& stack) {
  if (stack[2].toScalar().toDouble() != 0) return fill_by_rows(stack);
  auto self = stack[0].toTensor();
  self.copy_(at::where(stack[1].toTensor(), at::zeros_like(self), self));
  stack = {self};
}

Lowering plan_fill(const CutCall& c) {
  if (!c.has_partial(0)) return {};
  for (auto& placement : c.now[0]->placements()) {
    if (is_partial(placement) && placement != Placement(Partial())) return {};
  }
  return fill_sum;
}

}  // namespace

void add_fills(RuleTable& t) { t.lower("aten::masked_fill_.Scalar", plan_fill); }

}  // namespace intarsia
