// Quantiles, which LibTorch finds by sorting: what it makes on its way mixes with distributed tensors.

#include "intarsia/ops/own_tensors.h"
#include "intarsia/rules/table.h"

namespace intarsia {

void add_quantiles(RuleTable& t) {
  for (auto op : {"aten::quantile", "aten::quantile.scalar", "aten::nanquantile", "aten::nanquantile.scalar"}) {
    t.composite_boxed<&with_own_tensors>(op);
  }
}

}  // namespace intarsia
