#include "intarsia/core/pending.h"

namespace intarsia {

bool have_one_value(const Placements& placements) {
  std::optional<ReduceOp> first;
  auto adds = [](ReduceOp op) { return op == ReduceOp::sum || op == ReduceOp::avg; };
  for (auto& placement : placements) {
    auto op = pending_op(placement);
    if (!op) continue;
    if (first && *first != *op && !(adds(*first) && adds(*op))) return false;
    first = op;
  }
  return true;
}

}  // namespace intarsia
