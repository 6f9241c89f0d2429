// index_select: whole slices at the indices of one vector.

#include <ATen/ATen.h>

#include "intarsia/ops/indexing/held.h"
#include "intarsia/ops/indexing/take_along.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

std::vector<std::vector<int64_t>> selected_shapes(const OpCall& call) {
  auto shape = sizes_of(call.inputs[0]);
  if (!shape.empty()) shape[indexed_dim(call)] = call.inputs[1].numel();
  return {shape};
}

Rule index_select_rule() {
  Rule rule = rows("gather", [](const OpCall& call) {
    Rows rows;
    auto dim = indexed_dim(call);
    if (call.inputs[0].dim() == 0 || call.inputs[1].dim() == 0) return rows;
    for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
      if (d != dim) rows.push_back({{S(d), R}, {S(d)}});
    }
    rows.push_back({{R, S(0)}, {S(dim)}});
    add_for_any_reduction(rows, {{P_sum, R}, {P_sum}});
    return rows;
  });
  rule.aligned = true;
  return std::move(rule).like_input(0).with_shapes(selected_shapes).contiguous().refusing({1});
}

Lowering index_select_along(const CutCall& c) {
  if (c.input(0).dim() == 0) return {};
  auto dim = indexed_dim(c.call);
  if (!takes_along_cut(c, 1, dim)) return {};
  return [dim](Stack& stack) {
    auto plain = [dim](const at::Tensor& self, const at::Tensor& index) { at::index_select(self, dim, index); };
    stack = {take_along(stack[0].toTensor(), dim, stack[2].toTensor(), false, plain)};
  };
}

}  // namespace

void add_index_select(RuleTable& t) {
  t.add("aten::index_select", index_select_rule());
  t.lower("aten::index_select", index_select_along);
  // The indices are often a plain list of numbers: pack_padded_sequence sorts by lengths.
  t.traits("aten::index_select").plain["index"] = PlainArgument::places;
  t.formula_makes_places({"AsStrided", "IndexSelectBackward"});
}

}  // namespace intarsia
