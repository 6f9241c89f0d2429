#include "intarsia/data_parallel/fully_shard/average_terms.h"

#include <ATen/ATen.h>

#include "intarsia/tensor/body.h"

namespace intarsia {

Shards to_average_terms(const std::string& name, const at::Tensor& grad, const Layout& whole,
                        const std::vector<int64_t>& axes, bool one_loss) {
  TORCH_CHECK_TYPE(is_dtensor(grad) && mesh_of(grad) == whole.mesh(), "[fully_shard] the gradient of \"", name,
                   "\" is ", is_dtensor(grad) ? str(layout_of(grad)) : "a plain tensor", ", the parameter is ",
                   str(whole), ". Give one that lies on the same mesh.");
  auto wanted = settled(whole.placements());
  int64_t summed = 1;
  for (auto axis : axes) {
    auto& placement = placements_of(grad)[axis];
    bool is_sum = placement == Placement(Partial(ReduceOp::sum));
    if (pending_op(placement) == ReduceOp::avg) wanted[axis] = placement;
    if (!is_sum && cut_dim(placement) < 0) continue;
    wanted[axis] = Partial(ReduceOp::sum);
    summed *= whole.mesh().size(axis);
  }
  auto terms = shards_in(grad, whole.with(wanted));
  if (!one_loss || summed == 1) return terms;
  for (auto& term : terms) term = term * summed;
  return terms;
}

}  // namespace intarsia
