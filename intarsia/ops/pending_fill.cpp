// A constant written to a pending reduction: each rank gets its share, see Note [A value as a pending reduction]. If
// programs expect PyTorch's DTensor, each rank gets the number itself, so a sum becomes that number times the ranks.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/graph_task.h>

#include "intarsia/redistribute/share.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/policy.h"

namespace intarsia {
namespace {

// Autograd's formulas rely on the value, whatever the program expects.
bool fills_terms() {
  return pending_writes() == PendingWrites::error && torch::autograd::get_current_graph_task_id() < 0;
}

Lowering fill_pending(const CutCall& c) {
  if (!c.has_partial(0)) return {};
  return [layout = c.now[0]](Stack& stack) {
    auto self = stack[0].toTensor();
    auto& shards = body_of(self).shards();
    auto& slots = layout->mesh().slots();
    auto value = stack[1].toScalar();
    bool each = fills_terms();
    for (size_t slot = 0; slot < shards.size(); ++slot) {
      shards[slot].fill_(each ? value : share_of(value, *layout, slots[slot].coordinate));
    }
    body_of(self).written();
    stack = {self};
  };
}

}  // namespace

void add_pending_fill(RuleTable& t) { t.lower("aten::fill_.Scalar", fill_pending); }

}  // namespace intarsia
