// Padding with a constant, and cropping, along cut dims: the rows that move from one rank's share to another's travel.

#include <ATen/ATen.h>

#include "intarsia/conv/side.h"
#include "intarsia/conv/spread.h"
#include "intarsia/rules/builders.h"

namespace intarsia {
namespace {

// How many positions are put before dim `dim` (cropped, where negative). The list begins with the last dim.
int64_t padding_before(const OpCall& call, int64_t dim) {
  auto pads = call.arg("pad").toIntVector();
  size_t at = 2 * (call.inputs[0].dim() - 1 - dim);
  return at < pads.size() ? pads[at] : 0;
}

bool is_padded(const OpCall& call, int64_t dim) {
  auto pads = call.arg("pad").toIntVector();
  size_t at = 2 * (call.inputs[0].dim() - 1 - dim);
  return at < pads.size() && (pads[at] || pads[at + 1]);
}

void pad(Spread& run) {
  auto& input = run.call.inputs[0];
  auto& output = run.call.outputs[0];
  auto value = run.call.arg("value").toScalar();
  Sides sides;
  for (int64_t d = 0; d < input.dim(); ++d) {
    if (!is_padded(run.call, d)) continue;
    Window shift{1, 1, padding_before(run.call, d), 1};
    sides.push_back(make_side(d, shift, *run.in[0], input.sizes[d], *run.out[0], output.sizes[d]));
  }
  auto fetched = fetch(run.inputs[0], sides);
  for (size_t slot = 0; slot < run.slots(); ++slot) {
    auto result = pad_to_wanted(fetched[slot], sides, slot, value);
    run.outputs[0].push_back(result.is_alias_of(run.inputs[0][slot]) ? result.clone() : result);
  }
}

// Zeros are added to a pending sum by anybody.
Rule pad_rule(bool everywhere) {
  return rows("pad", [=](const OpCall& call) {
    Rows rows;
    for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
      if (everywhere || !is_padded(call, d)) rows.push_back({{S(d)}, {S(d)}});
    }
    if (call.arg("value").toScalar().equal(0)) rows.push_back({{P_sum}, {P_sum}});
    return rows;
  });
}

}  // namespace

void add_pad_rules(RuleTable& t) {
  t["aten::constant_pad_nd"] = pad_rule(false);
  t.decompose("aten::constant_pad_nd", spread({"aten::constant_pad_nd", pad_rule(true), pad, SpreadOp::kAllDims}));
}

}  // namespace intarsia
