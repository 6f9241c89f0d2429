// Channels that become pixels, and pixels that become channels, along cut dims: a pixel belongs to the rows under it.

#include <ATen/ATen.h>

#include "intarsia/conv/side.h"
#include "intarsia/conv/spread.h"
#include "intarsia/rules/builders.h"

namespace intarsia {
namespace {

// Along its dims the image grows like under a transposed convolution whose kernel is its stride, or shrinks like under one
// that is not transposed.
Window window_of(const OpCall& call) {
  bool grows = call.arg_index("upscale_factor") >= 0;
  auto factor = call.int_arg(grows ? "upscale_factor" : "downscale_factor", 1);
  return {factor, factor, 0, 1, grows};
}

// The rows that a rank holds of what its fetched rows have become.
at::Tensor own_rows(at::Tensor result, const Sides& sides, size_t slot) {
  for (auto& side : sides) {
    if (!side.window.transposed) continue;
    auto out = side.output(slot);
    result = result.narrow(side.dim, out.begin - written_by(side.window, side.needed(slot)).begin, out.size());
  }
  return result;
}

void rearrange_pixels(Spread& run) {
  auto& input = run.call.inputs[0];
  auto& output = run.call.outputs[0];
  auto window = window_of(run.call);
  Sides sides;
  for (auto d = input.dim() - 2; d < input.dim(); ++d) {
    sides.push_back(make_side(d, window, *run.in[0], input.sizes[d], *run.out[0], output.sizes[d]));
  }
  auto fetched = fetch(run.inputs[0], sides);
  for (size_t slot = 0; slot < run.slots(); ++slot) {
    auto shape = run.output_shape(0, slot);
    if (c10::multiply_integers(shape) == 0) {
      run.outputs[0].push_back(at::empty(shape, fetched[slot].options()));
      continue;
    }
    auto result = window.transposed ? at::pixel_shuffle(fetched[slot], window.kernel)
                                    : at::pixel_unshuffle(fetched[slot], window.kernel);
    run.outputs[0].push_back(own_rows(result, sides, slot));
  }
}

// The ordinary rules cut what is before the channels.
Rule rule_with_image(Rule rule) {
  rule.rows = [ordinary = rule.rows](const OpCall& call) {
    auto rows = ordinary(call);
    auto dims = call.inputs[0].dim();
    for (auto d : {dims - 2, dims - 1}) rows.push_back({{S(d)}, {S(d)}});
    return rows;
  };
  rule.aligned = false;  // windows slide over plain shards only
  return rule;
}

}  // namespace

void add_pixel_rules(RuleTable& t) {
  for (auto op : {"aten::pixel_shuffle", "aten::pixel_unshuffle"}) {
    SpreadOp spreading{op, rule_with_image(t[op]), rearrange_pixels, 2};
    spreading.keeps_format = true;
    t.decompose(op, spread(std::move(spreading)));
  }
}

}  // namespace intarsia
