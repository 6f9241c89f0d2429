// Adaptive max pools on sharded images: windows of uneven width, which may overlap.

#include <ATen/ATen.h>
#include <ATen/native/AdaptivePooling.h>

#include "intarsia/core/cut_axes.h"
#include "intarsia/ops/all.h"
#include "intarsia/ops/images/pool.h"

namespace intarsia {
namespace {

using Ints = std::vector<int64_t>;

// The window of output `o`, along one dim.
Interval window_of(int64_t o, int64_t output, int64_t input) {
  return {at::native::start_index(o, output, input), at::native::end_index(o, output, input)};
}

Sides adaptive_sides(int64_t image_dims, const Layout& input_layout, const TensorForm& input,
                     const Layout& output_layout, const TensorForm& output) {
  Sides sides;
  for (int64_t dim = input.dim() - image_dims; dim < input.dim(); ++dim) {
    auto size = input.sizes[dim], outputs = output.sizes[dim];
    Side side{dim,
              size,
              {},
              Axis::of(input_layout.mesh(), axes_cutting(input_layout, dim)),
              held_along(output_layout, dim, outputs),
              {dim, held_along(input_layout, dim, size), {}}};
    for (auto& out : side.outputs) {
      side.plan.needed.push_back(
          out.size() ? Interval{window_of(out.begin, outputs, size).begin, window_of(out.end - 1, outputs, size).end}
                     : Interval{0, 0});
    }
    sides.push_back(std::move(side));
  }
  return sides;
}

// Note [Windows laid side by side]
// The windows of a rank's outputs are copied one after the other, each extended to the same width by repeating its last
// row; then they are those of an ordinary pool. A repeated row changes neither the maximum nor which of several equal
// elements comes first.
struct SideBySide {
  int64_t width = 1;
  Ints positions;  // in the image, `width` per output
};

SideBySide side_by_side(const Side& side, size_t slot, int64_t outputs) {
  SideBySide result;
  auto out = side.output(slot);
  for (auto o = out.begin; o < out.end; ++o)
    result.width = std::max(result.width, window_of(o, outputs, side.size).size());
  for (auto o = out.begin; o < out.end; ++o) {
    auto window = window_of(o, outputs, side.size);
    for (int64_t k = 0; k < result.width; ++k) result.positions.push_back(std::min(window.begin + k, window.end - 1));
  }
  return result;
}

bool is_run(const Ints& positions, Interval run) {
  return static_cast<int64_t>(positions.size()) == run.size() && positions.front() == run.begin &&
         std::is_sorted(positions.begin(), positions.end(), std::less_equal<>());
}

// Converts indices among the copied rows to indices in the image.
at::Tensor image_indices(const at::Tensor& indices, const std::vector<SideBySide>& windows, const Sides& sides) {
  auto rest = indices, result = at::zeros_like(indices);
  int64_t scale = 1;
  for (size_t i = sides.size(); i-- > 0;) {
    int64_t extent = windows[i].positions.size();
    auto positions = at::tensor(windows[i].positions, at::kLong);
    result.add_(at::take(positions, at::remainder(rest, extent)), scale);
    rest = at::floor_divide(rest, extent);
    scale *= sides[i].size;
  }
  return result;
}

void adaptive_max_pool(JointCall& run, int64_t image_dims) {
  auto& output = run.call.outputs[0];
  auto sides = adaptive_sides(image_dims, *run.in[0], run.call.inputs[0], *run.out[0], output);
  auto fetched = fetch(run.inputs[0], sides);
  for (size_t slot = 0; slot < run.slots(); ++slot) {
    auto shape = run.output_shape(0, slot);
    auto image = fetched[slot];
    if (c10::multiply_integers(shape) == 0) {
      run.outputs[0].push_back(at::empty(shape, image.options()));
      run.outputs[1].push_back(at::empty(shape, image.options().dtype(at::kLong)));
      continue;
    }
    std::vector<SideBySide> windows;
    Ints widths;
    for (auto& side : sides) {
      windows.push_back(side_by_side(side, slot, output.sizes[side.dim]));
      widths.push_back(windows.back().width);
      auto& positions = windows.back().positions;
      if (is_run(positions, side.needed(slot))) continue;
      image = at::index_select(image, side.dim, at::tensor(positions, at::kLong).sub_(side.needed(slot).begin));
    }
    auto pool = image_dims == 2 ? at::max_pool2d_with_indices : at::max_pool3d_with_indices;
    Ints none(image_dims, 0), ones(image_dims, 1);
    auto [values, indices] = pool(image, widths, widths, none, ones, false);
    run.outputs[0].push_back(values);
    run.outputs[1].push_back(image_indices(indices, windows, sides));
  }
}

void adaptive_max_pool_backward(JointCall& run, int64_t image_dims) {
  return_to_indices(run, adaptive_sides(image_dims, *run.in[1], run.call.inputs[1], *run.in[0], run.call.inputs[0]));
}

}  // namespace

void add_adaptive_max_pools(RuleTable& t) {
  for (int64_t n : {2, 3}) {
    auto op = "aten::adaptive_max_pool" + std::to_string(n) + "d";
    t.add(op, pool_rule(n, false, [=](JointCall& run) { adaptive_max_pool(run, n); }));
    t.add(op + "_backward", pool_rule(n, false, [=](JointCall& run) { adaptive_max_pool_backward(run, n); }));
  }
}

}  // namespace intarsia
