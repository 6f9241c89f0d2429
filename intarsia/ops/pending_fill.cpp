// A constant over a pending reduction: each rank gets its share, see Note [A value as a pending reduction].

#include <ATen/ATen.h>

#include "intarsia/redistribute/share.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

Way fill_pending(const CutCall& c) {
  if (!c.has_partial(0)) return {};
  return [layout = c.now[0]](Stack& stack) {
    auto self = stack[0].toTensor();
    auto& shards = body_of(self).shards();
    auto& slots = layout->mesh().slots();
    for (size_t slot = 0; slot < shards.size(); ++slot) {
      shards[slot].fill_(share_of(stack[1].toScalar(), *layout, slots[slot].coordinate));
    }
    body_of(self).written();
    stack = {self};
  };
}

}  // namespace

void add_pending_fill(RuleTable& t) { t.along("aten::fill_.Scalar", fill_pending); }

}  // namespace intarsia
