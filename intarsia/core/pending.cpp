#include "intarsia/core/pending.h"

namespace intarsia {

bool have_one_value(const Placements& placements) {
  const Placement* first = nullptr;
  for (auto& placement : placements) {
    if (!is_partial(placement)) continue;
    if (first && *first != placement && !(adds_up(*first) && adds_up(placement))) return false;
    first = &placement;
  }
  return true;
}

}  // namespace intarsia
