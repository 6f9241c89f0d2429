// Padding with a constant, and cropping, along sharded dims: only rows that move from one rank's share to another's are
// sent.

#include <ATen/ATen.h>

#include "intarsia/ops/all.h"
#include "intarsia/ops/images/side.h"
#include "intarsia/redistribute/share.h"
#include "intarsia/rules/builders.h"

namespace intarsia {
namespace {

// How many positions are put before dim `dim` (cropped, if negative). The list begins with the last dim.
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

// Of the ranks that share a pending sum, one pads with the value and the others with zeros.
bool adds_the_value(const Layout& layout, const Slot& slot) { return holds_value(layout, slot.coordinate); }

void local_pad(LocalCall& local) {
  auto value = adds_the_value(*local.in[0], local.slot) ? local.stack[2].toScalar() : c10::Scalar(0);
  local.stack = {at::constant_pad_nd(local.stack[0].toTensor(), local.stack[1].toIntVector(), value)};
}

bool plain_pad_does(const OpCall&, c10::ArrayRef<const Layout*> in, c10::ArrayRef<const Layout*>, const Slot& slot) {
  return adds_the_value(*in[0], slot);
}

void pad(JointCall& run) {
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
    auto filled = adds_the_value(*run.in[0], run.mesh.slots()[slot]) ? value : c10::Scalar(0);
    auto result = pad_to_wanted(fetched[slot], sides, slot, filled);
    run.outputs[0].push_back(result.is_alias_of(run.inputs[0][slot]) ? result.clone() : result);
  }
}

// The choice does not depend on the value, so a pending sum may stay one whatever it is.
Rule pad_rule() {
  auto cuts = [](const OpCall& call, bool padded) {
    Rows rows;
    for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
      if (is_padded(call, d) == padded) rows.push_back({{S(d)}, {S(d)}});
    }
    return rows;
  };
  auto rule = rows("pad", [=](const OpCall& call) {
    auto rows = cuts(call, false);
    rows.push_back({{P_sum}, {P_sum}});
    return rows;
  });
  rule.joint = {[=](const OpCall& call) { return cuts(call, true); }, pad};
  rule.local.run = local_pad;
  rule.local.plain_does = plain_pad_does;
  return rule;
}

}  // namespace

void add_constant_pad(RuleTable& t) { t.add("aten::constant_pad_nd", pad_rule()); }

}  // namespace intarsia
