#include "intarsia/core/pending.h"

namespace intarsia {

bool have_one_value(const Placements& placements) {
  const Partial* first = nullptr;
  auto adds = [](const Partial& p) { return p.op == ReduceOp::sum || p.op == ReduceOp::avg; };
  for (auto& placement : placements) {
    auto* partial = std::get_if<Partial>(&placement);
    if (!partial) continue;
    if (first && first->op != partial->op && !(adds(*first) && adds(*partial))) return false;
    first = partial;
  }
  return true;
}

}  // namespace intarsia
