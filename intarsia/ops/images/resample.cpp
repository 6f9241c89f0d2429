// Ops that act on each dim of an image separately, every output being a weighted sum of a few inputs: interpolation,
// padding with the image's own rows, adaptive averages. See Note [Taps].

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/native/UpSample.h>

#include "intarsia/core/cut_axes.h"
#include "intarsia/ops/all.h"
#include "intarsia/ops/images/resample_forms.h"
#include "intarsia/ops/images/rows.h"
#include "intarsia/propagate/forms.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/empty.h"

namespace intarsia {
namespace {

using Ints = std::vector<int64_t>;

// Note [Taps]
// Along one dim, output o is the sum over k of weight[k][o] * input[index[k][o]]. A rank fetches the run of rows
// between the first and the last index of its outputs, and computes only those. The gradient is the adjoint, step by
// step.
struct Taps {
  std::vector<Ints> index;                  // [tap][output]
  std::vector<std::vector<double>> weight;  // the same; empty where all are 1
  bool ragged = false;                      // outputs have different numbers of taps: weight 0 means that there is none

  void resize(size_t taps, int64_t outputs, bool weighted) {
    index.assign(taps, Ints(outputs, 0));
    if (weighted) weight.assign(taps, std::vector<double>(outputs, 0));
  }
};

// One dim of the image in one call.
struct Dim {
  int64_t input, output;  // extents
  size_t number;          // among the dims of the image
  const OpCall& call;
};
using MakeTaps = std::function<Taps(const Dim&)>;

std::optional<double> scale_of(const Dim& d, size_t image_dims) {
  static const char* const kNames[] = {"scales_d", "scales_h", "scales_w"};
  auto name = image_dims == 1 ? "scales" : kNames[3 - image_dims + d.number];
  if (d.call.arg_index(name) < 0 || d.call.arg(name).isNone()) return std::nullopt;
  return d.call.arg(name).toDouble();
}

bool computes_in_double(const OpCall& call) { return call.inputs[0].dtype == at::kDouble; }

MakeTaps nearest(size_t image_dims, bool exact) {
  return [=](const Dim& d) {
    Taps taps;
    taps.resize(1, d.output, false);
    auto scale = scale_of(d, image_dims);
    for (int64_t o = 0; o < d.output; ++o) {
      taps.index[0][o] = exact ? at::native::nearest_exact_idx(o, d.input, d.output, scale)
                               : at::native::nearest_idx(o, d.input, d.output, scale);
    }
    return taps;
  };
}

template <class Real>
Taps linear_taps(const Dim& d, bool align_corners, std::optional<double> scale) {
  Taps taps;
  taps.resize(2, d.output, true);
  auto step = at::native::area_pixel_compute_scale<Real>(d.input, d.output, align_corners, scale);
  for (int64_t o = 0; o < d.output; ++o) {
    int64_t first, second;
    Real left, right;
    at::native::compute_source_index_and_lambda<Real, Real>(first, second, left, right, step, o, d.input, d.output,
                                                            align_corners);
    taps.index[0][o] = first, taps.index[1][o] = second;
    taps.weight[0][o] = left, taps.weight[1][o] = right;
  }
  return taps;
}

template <class Real>
Taps cubic_taps(const Dim& d, bool align_corners, std::optional<double> scale) {
  Taps taps;
  taps.resize(4, d.output, true);
  auto step = at::native::area_pixel_compute_scale<Real>(d.input, d.output, align_corners, scale);
  for (int64_t o = 0; o < d.output; ++o) {
    Real source = at::native::area_pixel_compute_source_index<Real>(step, o, align_corners, /*cubic=*/true);
    int64_t index;
    Real fraction;
    at::native::guard_index_and_lambda(source, d.input, index, fraction);
    Real weights[4];
    at::native::get_cubic_upsample_coefficients<Real>(weights, fraction);
    for (int64_t k = 0; k < 4; ++k) {
      taps.index[k][o] = std::clamp<int64_t>(index - 1 + k, 0, d.input - 1);
      taps.weight[k][o] = weights[k];
    }
  }
  return taps;
}

// Filters of antialiased interpolation, as functions of the distance from the output's centre.
double triangle(double x) { return std::max(0., 1 - std::abs(x)); }
double cubic(double x) {
  x = std::abs(x);
  return x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}
double sinc(double x) { return x == 0 ? 1 : std::sin(M_PI * x) / (M_PI * x); }
double lanczos(double x) { return std::abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0; }

struct Filter {
  double (*weight)(double);
  double reach;  // how far from the centre it is not 0
};

// Where the image shrinks, the filter widens, so that every input contributes.
template <class Real>
Taps antialiased_taps(const Dim& d, bool align_corners, std::optional<double> scale, const Filter& filter) {
  Taps taps;
  taps.ragged = true;
  auto step = at::native::area_pixel_compute_scale<Real>(d.input, d.output, align_corners, scale);
  Real stretch = std::max<Real>(step, 1), reach = static_cast<Real>(filter.reach) * stretch;
  int64_t most = static_cast<int64_t>(std::ceil(reach)) * 2 + 1;
  taps.resize(most, d.output, true);
  for (int64_t o = 0; o < d.output; ++o) {
    Real centre = step * (static_cast<Real>(o) + Real(0.5));
    auto first = std::max<int64_t>(static_cast<int64_t>(centre - reach + Real(0.5)), 0);
    auto count = std::clamp<int64_t>(
        std::min<int64_t>(static_cast<int64_t>(centre + reach + Real(0.5)), d.input) - first, 0, most);
    double total = 0;
    for (int64_t k = 0; k < most; ++k) {
      bool inside = k < count;
      taps.index[k][o] = std::min(inside ? first + k : first, d.input - 1);
      taps.weight[k][o] = inside ? filter.weight((static_cast<double>(first + k) - centre + 0.5) / stretch) : 0;
      total += taps.weight[k][o];
    }
    for (int64_t k = 0; k < count && total != 0; ++k) taps.weight[k][o] /= total;
  }
  return taps;
}

MakeTaps antialiased(Filter filter) {
  return [=](const Dim& d) {
    bool align = d.call.bool_arg("align_corners", false);
    auto scale = scale_of(d, 2);
    return computes_in_double(d.call) ? antialiased_taps<double>(d, align, scale, filter)
                                      : antialiased_taps<float>(d, align, scale, filter);
  };
}

MakeTaps smooth(size_t image_dims, bool cubic) {
  return [=](const Dim& d) {
    bool align = d.call.bool_arg("align_corners", false), exact = computes_in_double(d.call);
    auto scale = scale_of(d, image_dims);
    if (cubic) return exact ? cubic_taps<double>(d, align, scale) : cubic_taps<float>(d, align, scale);
    return exact ? linear_taps<double>(d, align, scale) : linear_taps<float>(d, align, scale);
  };
}

// The padding before and after a dim: the list begins with the last dim.
int64_t padding_before(const OpCall& call, size_t image_dims, size_t number) {
  return call.arg("padding").toIntVector()[2 * (image_dims - 1 - number)];
}

MakeTaps border(size_t image_dims, bool reflect) {
  return [=](const Dim& d) {
    Taps taps;
    taps.resize(1, d.output, false);
    auto before = padding_before(d.call, image_dims, d.number);
    for (int64_t o = 0; o < d.output; ++o) {
      auto i = o - before;
      if (reflect && i < 0) i = -i;
      if (reflect && i >= d.input) i = 2 * (d.input - 1) - i;
      taps.index[0][o] = std::clamp<int64_t>(i, 0, d.input - 1);
    }
    return taps;
  };
}

Taps adaptive_average(const Dim& d) {
  Taps taps;
  auto begin = [&](int64_t o) { return o * d.input / d.output; };
  auto end = [&](int64_t o) { return ((o + 1) * d.input + d.output - 1) / d.output; };
  int64_t most = 0;
  for (int64_t o = 0; o < d.output; ++o) most = std::max(most, end(o) - begin(o));
  taps.resize(most, d.output, true);
  taps.ragged = true;
  for (int64_t o = 0; o < d.output; ++o) {
    for (int64_t k = 0; k < most; ++k) {
      bool inside = begin(o) + k < end(o);
      taps.index[k][o] = inside ? begin(o) + k : begin(o);
      taps.weight[k][o] = inside ? 1.0 / static_cast<double>(end(o) - begin(o)) : 0;
    }
  }
  return taps;
}

// A dim with its taps and the rows that each rank needs.
struct Plane {
  int64_t dim;
  Taps taps;
  const Axis& axis;
  std::vector<Interval> outputs;
  RowPlan plan;

  // The taps of one slot, as tensors: indices into the fetched rows, and weights that broadcast.
  std::pair<at::Tensor, at::Tensor> tap(size_t k, size_t slot, const at::Tensor& like) const {
    auto me = axis.position(slot);
    auto out = outputs[me];
    auto part = [&](auto& values) { return at::tensor(c10::makeArrayRef(values).slice(out.begin, out.size())); };
    auto index = part(taps.index[k]).sub_(plan.needed[me].begin);
    if (taps.weight.empty()) return {index, {}};
    std::vector<int64_t> shape(like.dim(), 1);
    shape[dim] = out.size();
    return {index, part(taps.weight[k]).to(like.options()).view(shape)};
  }
};

std::vector<Plane> planes(const JointCall& run, const MakeTaps& make, size_t image_dims, const Layout& input_layout,
                          at::IntArrayRef input, const Layout& output_layout, at::IntArrayRef output) {
  std::vector<Plane> result;
  for (size_t i = 0; i < image_dims; ++i) {
    int64_t dim = input.size() - image_dims + i;
    auto taps = make({input[dim], output[dim], i, run.call});
    Plane plane{dim,
                std::move(taps),
                Axis::of(run.mesh, axes_cutting(input_layout, dim)),
                held_along(output_layout, dim, output[dim]),
                {dim, held_along(input_layout, dim, input[dim]), {}}};
    for (auto& out : plane.outputs) {
      Interval needed{0, 0};
      for (auto o = out.begin; o < out.end; ++o) {
        for (auto& index : plane.taps.index) {
          if (needed.size() == 0) needed = {index[o], index[o] + 1};
          needed = {std::min(needed.begin, index[o]), std::max(needed.end, index[o] + 1)};
        }
      }
      plane.plan.needed.push_back(needed);
    }
    result.push_back(std::move(plane));
  }
  return result;
}

void resample(JointCall& run, const MakeTaps& make, size_t image_dims) {
  auto all =
      planes(run, make, image_dims, *run.in[0], run.call.inputs[0].sizes, *run.out[0], run.call.outputs[0].sizes);
  auto shards = run.inputs[0];
  for (auto& plane : all) shards = fetch_rows(shards, plane.plan, plane.axis);
  for (size_t slot = 0; slot < run.slots(); ++slot) {
    auto x = shards[slot];
    for (auto& plane : all) {
      at::Tensor sum;
      for (size_t k = 0; k < plane.taps.index.size(); ++k) {
        auto [index, weight] = plane.tap(k, slot, x);
        auto rows = at::index_select(x, plane.dim, index);
        if (weight.defined()) rows.mul_(weight);
        if (plane.taps.ragged) rows.masked_fill_(at::eq(weight, 0), 0);  // also where the image is infinite
        sum = sum.defined() ? sum.add_(rows) : rows;
      }
      x = sum.defined() ? sum : x.narrow(plane.dim, 0, 0);  // without outputs there are no taps
    }
    run.outputs[0].push_back(x);
  }
}

void resample_backward(JointCall& run, const MakeTaps& make, size_t image_dims) {
  // The image has the layout of its gradient.
  auto all =
      planes(run, make, image_dims, *run.out[0], run.call.outputs[0].sizes, *run.in[0], run.call.inputs[0].sizes);
  for (size_t slot = 0; slot < run.slots(); ++slot) {
    auto grad = run.input(0, slot);
    for (size_t i = all.size(); i-- > 0;) {
      auto& plane = all[i];
      auto shape = grad.sizes().vec();
      shape[plane.dim] = plane.plan.needed[plane.axis.position(slot)].size();
      auto sum = at::zeros(shape, grad.options());
      for (size_t k = 0; k < plane.taps.index.size(); ++k) {
        auto [index, weight] = plane.tap(k, slot, grad);
        if (grad.numel()) sum.index_add_(plane.dim, index, weight.defined() ? grad * weight : grad);
      }
      grad = sum;
    }
    run.outputs[0].push_back(grad);
  }
  for (size_t i = all.size(); i-- > 0;) run.outputs[0] = return_rows(run.outputs[0], all[i].plan, all[i].axis);
}

// Linear in the first tensor; a second one only gives its shape. Weighted sums of integers are rounded as in the plain
// op, which alone knows how. If nothing is weighted, inputs are just copied.
Rule resample_rule(int64_t image_dims, bool weighted, std::function<void(JointCall&)> run) {
  auto rounds = [=](const OpCall& call) { return weighted && !at::isFloatingType(call.inputs[0].dtype); };
  auto cut = [](const OpCall& call, int64_t d) { return Row{Placements(call.inputs.size(), S(d)), {S(d)}}; };
  auto rule = unless_empty(rows("resample", [=](const OpCall& call) {
    Rows rows;
    for (int64_t d = 0; d < call.inputs[0].dim() - image_dims; ++d) rows.push_back(cut(call, d));
    if (rounds(call)) return rows;
    Placements pending(call.inputs.size(), R);
    pending[0] = P_sum;
    rows.push_back({pending, {P_sum}});
    return rows;
  }));
  auto along = [=](const OpCall& call) {
    Rows rows;
    auto ndim = call.inputs[0].dim();
    for (auto d = ndim - image_dims; d < ndim && !rounds(call); ++d) rows.push_back(cut(call, d));
    return rows;
  };
  return std::move(rule).with_joint(along, std::move(run));
}

}  // namespace

void add_resamples(RuleTable& t) {
  auto add = [&](const std::string& op, size_t n, const MakeTaps& make, bool backward, bool weighted,
                 const Forms& forms = nullptr, bool keeps_format = false, std::vector<std::string> size_args = {}) {
    auto rule =
        resample_rule(n, weighted, [=](JointCall& run) { (backward ? resample_backward : resample)(run, make, n); });
    rule.local.size_args = std::move(size_args);
    rule.form.whole = forms;
    rule.form.keeps_format = keeps_format;
    t.add(op, std::move(rule));
  };
  auto both = [&](const std::string& op, size_t n, const MakeTaps& make, bool weighted = true) {
    add(op, n, make, false, weighted, resized_form(n, false), n > 1);
    add(op + "_backward", n, make, true, weighted, resized_form(n, true), n > 1, {"input_size"});
  };
  for (size_t n : {1, 2, 3}) {
    auto d = std::to_string(n) + "d";
    both("aten::upsample_nearest" + d, n, nearest(n, false), false);
    both("aten::_upsample_nearest_exact" + d, n, nearest(n, true), false);
  }
  both("aten::upsample_linear1d", 1, smooth(1, false));
  both("aten::upsample_bilinear2d", 2, smooth(2, false));
  both("aten::upsample_trilinear3d", 3, smooth(3, false));
  both("aten::upsample_bicubic2d", 2, smooth(2, true));
  both("aten::_upsample_bilinear2d_aa", 2, antialiased({triangle, 1}));
  both("aten::_upsample_bicubic2d_aa", 2, antialiased({cubic, 2}));
  both("aten::_upsample_lanczos2d_aa", 2, antialiased({lanczos, 3}));
  for (size_t n : {2, 3}) {
    auto op = "aten::_adaptive_avg_pool" + std::to_string(n) + "d";
    add(op, n, adaptive_average, false, true, adaptive_form(n), n == 2);
    add(op + "_backward", n, adaptive_average, true, true, second_form);
  }
  for (size_t n : {1, 2, 3}) {
    auto op = "aten::replication_pad" + std::to_string(n) + "d";
    add(op, n, border(n, false), false, false, nullptr, true);
    add(op + "_backward", n, border(n, false), true, false, second_form);
  }
  for (size_t n : {1, 2, 3}) {
    auto op = "aten::reflection_pad" + std::to_string(n) + "d";
    add(op, n, border(n, true), false, false, reflected_form(n), true);
    add(op + "_backward", n, border(n, true), true, false, second_form);
  }
}

}  // namespace intarsia
