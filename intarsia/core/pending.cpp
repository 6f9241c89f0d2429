#include "intarsia/core/pending.h"

#include "intarsia/core/more_reductions.h"

namespace intarsia {

bool have_one_value(const Placements& placements) {
  std::optional<ReduceOp> first;
  for (auto& placement : placements) {
    auto op = pending_op(placement);
    if (!op) continue;
    if (first && *first != *op && !(adds_up(*first) && adds_up(*op))) return false;
    first = op;
  }
  return true;
}

}  // namespace intarsia
