#include "intarsia/ops/order/dim_rules.h"

namespace intarsia {

Rule scan_rule(Rows pending) {
  Rule rule = rows("scan", [pending](const OpCall& call) {
    auto ndim = call.inputs[0].dim();
    if (ndim == 0) return Rows();
    auto rows = independent_of(call, {call.dim_arg("dim", ndim)});
    for (auto& row : pending) {
      if (survives_casts(row, call)) rows.push_back(row);
    }
    return rows;
  });
  rule.aligned = true;
  return rule;
}

Rule pick_rule() {
  Rule rule = rows("pick", [](const OpCall& call) {
    Rows rows;
    auto ndim = call.inputs[0].dim();
    if (ndim == 0 || call.arg("dim").isNone()) return rows;
    auto dim = call.dim_arg("dim", ndim);
    bool keep = call.bool_arg("keepdim", false);
    for (int64_t d = 0; d < ndim; ++d) {
      if (d == dim) continue;
      rows.push_back({{S(d)}, Placements(call.outputs.size(), S(!keep && d > dim ? d - 1 : d))});
    }
    return rows;
  });
  rule.aligned = true;
  return rule;
}

std::vector<c10::ScalarType> with_places(const OpCall& call) { return {call.inputs[0].dtype, c10::ScalarType::Long}; }

}  // namespace intarsia
