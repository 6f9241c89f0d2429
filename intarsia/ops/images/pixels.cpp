// Pixel shuffle and unshuffle along sharded dims: a pixel belongs to the rows under it.

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/ops/all.h"
#include "intarsia/ops/images/side.h"
#include "intarsia/propagate/forms.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/empty.h"

namespace intarsia {
namespace {

// Along its dims the image grows as under a transposed convolution whose kernel is its stride, or shrinks as under an
// ordinary one.
Window window_of(const OpCall& call) {
  bool grows = call.arg_index("upscale_factor") >= 0;
  auto factor = call.int_arg(grows ? "upscale_factor" : "downscale_factor", 1);
  return {factor, factor, 0, 1, grows};
}

// The rows that a rank holds of the result of its fetched rows.
at::Tensor own_rows(at::Tensor result, const Sides& sides, size_t slot) {
  for (auto& side : sides) {
    if (!side.window.transposed) continue;
    auto out = side.output(slot);
    result = result.narrow(side.dim, out.begin - written_by(side.window, side.needed(slot)).begin, out.size());
  }
  return result;
}

void rearrange_pixels(JointCall& run) {
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

// Whether the channels that a rank holds become the channels that it is to hold.
bool same_channels(const OpCall& call, const Layout& in, const Layout& out) {
  auto dim = call.inputs[0].dim() - 3;
  auto before = call.inputs[0].sizes[dim], after = call.outputs[0].sizes[dim];
  for (int64_t rank = 0; rank < in.mesh().size() && std::min(before, after) > 0; ++rank) {
    auto coordinate = in.mesh().coordinate_at(rank);
    auto held = intervals_of(in, dim, before, coordinate), wanted = intervals_of(out, dim, after, coordinate);
    auto same = [&](auto& a, auto& b) {
      return a.begin * after == b.begin * before && a.end * after == b.end * before;
    };
    if (!std::equal(held.begin(), held.end(), wanted.begin(), wanted.end(), same)) return false;
  }
  return true;
}

// Channels and pixels change places; the dims before them stay. No element is computed, so any pending reduction
// passes.
Rule pixel_rule(std::vector<int64_t> (*shape)(const OpCall&)) {
  Rule rule = rows("rearrange", [](const OpCall& call) {
    Rows rows;
    for (int64_t d = 0; d + 2 < call.inputs[0].dim(); ++d) rows.push_back({{S(d)}, {S(d)}});
    add_for_any_reduction(rows, {{P_sum}, {P_sum}});
    return rows;
  });
  rule.aligned = true;
  rule.joint = {[](const OpCall& call) {
                  auto dims = call.inputs[0].dim();
                  return Rows{{{S(dims - 2)}, {S(dims - 2)}}, {{S(dims - 1)}, {S(dims - 1)}}};
                },
                rearrange_pixels};
  rule.legal = same_channels;
  rule.form.keeps_format = true;
  return std::move(rule)
      .with_shapes([shape](const OpCall& call) {
        using Shapes = std::vector<std::vector<int64_t>>;
        auto factor = call.int_arg("upscale_factor", call.int_arg("downscale_factor", 0));
        return call.inputs[0].dim() < 3 || factor < 1 ? Shapes() : Shapes{shape(call)};
      })
      .with_dtypes([](const OpCall& call) { return std::vector<c10::ScalarType>{call.inputs[0].dtype}; });
}

std::vector<int64_t> shuffled(const OpCall& call) {
  auto shape = sizes_of(call.inputs[0]);
  auto factor = call.int_arg("upscale_factor", 1);
  auto n = shape.size();
  shape[n - 3] /= factor * factor, shape[n - 2] *= factor, shape[n - 1] *= factor;
  return shape;
}

std::vector<int64_t> unshuffled(const OpCall& call) {
  auto shape = sizes_of(call.inputs[0]);
  auto factor = call.int_arg("downscale_factor", 1);
  auto n = shape.size();
  shape[n - 3] *= factor * factor, shape[n - 2] /= factor, shape[n - 1] /= factor;
  return shape;
}

// The plain op returns an empty tensor unchanged, whatever its shape.
std::vector<TensorForm> nothing_unshuffled(const OpCall& call) {
  auto& self = call.inputs[0];
  if (self.numel() > 0) return {};
  ask_plain(call);
  return {dense_form(self.sizes, self.dtype)};
}

}  // namespace

void add_pixels(RuleTable& t) {
  t.add("aten::pixel_shuffle", pixel_rule(shuffled));
  t.add("aten::pixel_unshuffle", unless_empty(pixel_rule(unshuffled)).with_forms(nothing_unshuffled));
}

}  // namespace intarsia
