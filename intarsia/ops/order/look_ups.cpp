// Lookups: positions among sorted numbers, whether a number occurs, the element at a flat index.

#include <ATen/ATen.h>

#include "intarsia/propagate/forms.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;

// The result of a lookup has the shape of an input and is contiguous, whatever that input's order in memory. The op
// itself gives the dtype.
Rule found_for(size_t input, Rule rule) {
  return std::move(rule)
      .with_shapes([input](const OpCall& call) -> Shapes { return {sizes_of(call.inputs[input])}; })
      .contiguous();
}

Placement added_up(const OpCall&) { return P_sum; }
Placement anywhere(const OpCall& call) { return P(call.bool_arg("invert", false) ? ReduceOp::band : ReduceOp::bor); }

// op(elements, whole, ...): the first tensor is looked up in the second, element by element. Where the second is cut,
// every rank has an answer for its part, and `joined` tells how they combine: places in sorted rows add up, and rise
// with what is looked up, so that the place of the largest element is the largest place.
Rule looked_up(Placement (*joined)(const OpCall&), Rows pending = {}) {
  Rule rule = rows("look-up", [joined, pending](const OpCall& call) {
    Rows rows = pending;
    for (int64_t d = 0; d < call.inputs[1].dim(); ++d) rows.push_back({{R, S(d)}, {joined(call)}});
    for (int64_t d = 0; d < call.outputs[0].dim(); ++d) {
      Row row{Placements(call.inputs.size(), R), {S(d)}};
      row.in[0] = S(d);
      rows.push_back(std::move(row));
    }
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// searchsorted(sorted, values, sorter): leading dims of `sorted` pair up with those of `values`; a single sorted row
// serves values of any shape. Values may always be sharded along the last dim, where they are independent.
Rule searchsorted() {
  Rule rule = rows("look-up", [](const OpCall& call) {
    Rows rows;
    auto &sorted = call.inputs[0], &values = call.inputs[1];
    for (int64_t d = 0; d < values.dim(); ++d) {
      bool paired = sorted.dim() > 1 && d + 1 < values.dim();
      Row row{Placements(call.inputs.size(), R), {S(d)}};
      row.in[1] = S(d);
      if (paired) row.in[0] = S(d);
      if (paired && call.inputs.size() > 2 && call.inputs[2].defined) row.in[2] = S(d);
      rows.push_back(std::move(row));
    }
    return rows;
  });
  rule.aligned = true;
  return std::move(rule).checking([](const OpCall& call) {
    auto &sorted = call.inputs[0], &values = call.inputs[1], &sorter = call.inputs[2];
    bool fits = sorted.dim() == 1 || (sorted.dim() > 0 && sorted.dim() == values.dim());
    for (int64_t d = 0; fits && sorted.dim() > 1 && d + 1 < sorted.dim(); ++d)
      fits = sorted.sizes[d] == values.sizes[d];
    if (!fits || (sorter.defined && sorter.sizes != sorted.sizes)) ask_plain(call);
  });
}

// The position of one number in a sorted row.
Rule place_of_number() {
  return rows("look-up",
              [](const OpCall& call) {
                Row row{Placements(call.inputs.size(), R), {P_sum}};
                row.in[0] = S(0);
                bool alone = call.inputs[0].dim() == 1 && (call.inputs.size() == 1 || !call.inputs[1].defined);
                return alone ? Rows{row} : Rows();
              })
      .with_shapes([](const OpCall&) -> Shapes { return {{}}; });
}

// Whether one number occurs.
Rule occurs() {
  return rows("look-up", [](const OpCall& call) {
    Rows rows;
    for (int64_t d = 0; d < call.inputs[0].dim(); ++d) rows.push_back({{S(d)}, {anywhere(call)}});
    return rows;
  });
}

// take(self, index) reads self as flat.
Rule take() {
  return rows("gather",
              [](const OpCall& call) {
                Rows rows;
                for (int64_t d = 0; d < call.inputs[1].dim(); ++d) rows.push_back({{R, S(d)}, {S(d)}});
                add_for_any_reduction(rows, {{P_sum, R}, {P_sum}});
                return rows;
              })
      .with_shapes([](const OpCall& call) -> Shapes { return {sizes_of(call.inputs[1])}; });
}

// By the other overload, whose meta kernel infers the right shape.
void occurs_by_tensor(Stack& stack) {
  auto element = at::scalar_tensor(stack[0].toScalar(), at::TensorOptions(stack[0].toScalar().type()));
  stack = {at::isin(element, stack[1].toTensor(), stack[2].toBool(), stack[3].toBool())};
}

}  // namespace

void add_look_ups(RuleTable& t) {
  t.add("aten::bucketize.Tensor", found_for(0, looked_up(added_up, {{{P_max, R}, {P_max}}, {{P_min, R}, {P_min}}})));
  t.add("aten::searchsorted.Tensor", found_for(1, searchsorted()));
  t.add({"aten::bucketize.Scalar", "aten::searchsorted.Scalar"}, place_of_number());
  t.add("aten::isin.Tensor_Tensor", looked_up(anywhere).with_local([](LocalCall& local) {
    for (auto i : {0, 1})
      local.stack[i] = local.stack[i].toTensor().contiguous();  // its fast path reads them as one row
    local.call_plain();
  }));
  t.add("aten::isin.Scalar_Tensor", occurs());
  t.always("aten::isin.Scalar_Tensor", occurs_by_tensor);
  t.add("aten::take", take().refusing({1}));
}

}  // namespace intarsia
