// A constant over a pending reduction: each rank gets its share, see Note [A value as a pending reduction].

#include <ATen/ATen.h>

#include "intarsia/redistribute/run.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

// Tensors without data have nothing to be filled.
void fill_shares(const at::Tensor& self, const at::Scalar& number, const Layout& pending) {
  if (self.is_meta()) return;
  auto value = at::scalar_tensor(number, at::dtype(self.scalar_type()));
  auto& shards = body_of(self).shards();
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    shards[slot].fill_(shard_of(value, pending, pending.mesh().slots()[slot].coordinate).item());
  }
}

Way fill_pending(const CutCall& c) {
  if (!c.has_partial(0)) return {};
  auto placements = c.now[0]->placements();
  for (auto& placement : placements) {
    if (!is_partial(placement)) placement = Replicate();
  }
  auto* pending = c.now[0]->with(placements);
  return [pending](Stack& stack) {
    auto self = stack[0].toTensor();
    fill_shares(self, stack[1].toScalar(), *pending);
    body_of(self).written();
    stack = {self};
  };
}

}  // namespace

void add_pending_fill(RuleTable& t) { t.along("aten::fill_.Scalar", fill_pending); }

}  // namespace intarsia
