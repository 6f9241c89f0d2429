// Ops that ask for all of their tensor by nature: they run on whole tensors, and nobody needs to be told.

#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {

void add_whole_rules(RuleTable& t) {
  for (auto op : {"_local_scalar_dense", "equal", "allclose", "is_nonzero"}) {
    t[std::string("aten::") + op] = rows("whole", [](const OpCall&) { return Rows(); });
  }
}

}  // namespace intarsia
