// Fractional pools: windows at random positions, per sample and channel.

#include <ATen/ATen.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/empty.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// Samples and channels are pooled one by one; an image without a batch dim has random numbers for one.
Rule forward(int64_t dims) {
  return unless_empty(rows("fractional pool", [dims](const OpCall& call) -> Rows {
    auto ndim = call.inputs[0].dim();
    if (ndim == dims + 2) return {{{S(0), S(0)}, {S(0), S(0)}}, {{S(1), S(1)}, {S(1), S(1)}}};
    return {{{S(0), S(1)}, {S(0), S(0)}}};
  }));
}

// op(grad, input, ..., indices)
Rule backward(int64_t dims) {
  return unless_empty(rows("fractional pool", [dims](const OpCall& call) -> Rows {
                        Rows rows = {{{S(0), S(0), S(0)}, {S(0)}}};
                        if (call.inputs[1].dim() == dims + 2) rows.push_back({{S(1), S(1), S(1)}, {S(1)}});
                        rows.push_back({{P_sum, R, R}, {P_sum}});
                        return rows;
                      }).like_input(1));
}

}  // namespace

void add_fractional_pools(RuleTable& t) {
  t.add("aten::fractional_max_pool2d", forward(2));
  t.add("aten::fractional_max_pool2d_backward", backward(2));
  t.add("aten::fractional_max_pool3d", forward(3));
  t.add("aten::fractional_max_pool3d_backward", backward(3));
  // F::fractional_max_pool2d draws them in the caller's program, each rank from its own generator.
  t.traits({"aten::fractional_max_pool2d", "aten::fractional_max_pool3d"},
           [](Traits& traits) { traits.plain["random_samples"] = PlainArgument::drawn; });
}

}  // namespace intarsia
