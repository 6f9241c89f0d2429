// Pooling on sharded images: the windows of a convolution, with a maximum or an average in place of the weight.

#include <ATen/ATen.h>
#include <ATen/native/MaxPooling.h>
#include <ATen/native/Pool.h>

#include "intarsia/ops/all.h"
#include "intarsia/ops/images/pool.h"
#include "intarsia/propagate/forms.h"
#include "intarsia/redistribute/share.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/empty.h"

namespace intarsia {
namespace {

using Ints = std::vector<int64_t>;

// The plain arguments, one number per dim of the image.
struct PoolArgs {
  Ints kernel, stride, padding, dilation;
};

PoolArgs pool_args(const OpCall& call, int64_t image_dims) {
  auto list = [&](const char* name) {
    if (call.arg_index(name) < 0) return Ints(image_dims, 1);
    auto values = call.arg(name).toIntVector();
    return values.size() == 1 ? Ints(image_dims, values[0]) : values;
  };
  PoolArgs args{list("kernel_size"), list("stride"), list("padding"), list("dilation")};
  if (args.stride.empty()) args.stride = args.kernel;
  return args;
}

Sides pool_sides(const PoolArgs& args, const Layout& input_layout, const TensorForm& input, const Layout& output_layout,
                 const TensorForm& output) {
  Sides sides;
  int64_t image_dims = args.kernel.size();
  for (int64_t i = 0; i < image_dims; ++i) {
    auto dim = input.dim() - image_dims + i;
    Window window{args.kernel[i], args.stride[i], args.padding[i], args.dilation[i]};
    sides.push_back(make_side(dim, window, input_layout, input.sizes[dim], output_layout, output.sizes[dim]));
  }
  return sides;
}

// No padding: positions beyond the image have already been filled, also under windows of ceil_mode.
Ints zeros_for(const PoolArgs& args) { return Ints(args.kernel.size(), 0); }

// Indices number positions row by row in one frame; this renumbers them in another. `from` and `to` give each dim's
// run.
at::Tensor renumbered(const at::Tensor& indices, const std::vector<Interval>& from, const std::vector<Interval>& to) {
  auto rest = indices, result = at::zeros_like(indices);
  int64_t scale = 1;
  for (size_t i = from.size(); i-- > 0;) {
    auto position = at::remainder(rest, from[i].size()).add_(from[i].begin - to[i].begin);
    rest = at::floor_divide(rest, from[i].size());
    result.add_(position.clamp_(0, to[i].size() - 1), scale);
    scale *= to[i].size();
  }
  return result;
}

// Whether a rank has no part of the results; creates empty ones then.
bool leaves_empty(JointCall& run, size_t slot) {
  auto shape = run.output_shape(0, slot);
  if (c10::multiply_integers(shape) > 0) return false;
  for (size_t i = 0; i < run.outputs.size(); ++i) {
    run.outputs[i].push_back(at::empty(shape, run.input(0, slot).options().dtype(run.call.outputs[i].dtype)));
  }
  return true;
}

void max_pool(JointCall& run, int64_t image_dims) {
  auto args = pool_args(run.call, image_dims);
  auto& form = run.call.inputs[0];
  auto sides = pool_sides(args, *run.in[0], form, *run.out[0], run.call.outputs[0]);
  auto fetched = fetch(run.inputs[0], sides);
  for (size_t slot = 0; slot < run.slots(); ++slot) {
    auto& rows = fetched[slot];
    if (leaves_empty(run, slot)) continue;
    auto image = pad_to_wanted(rows, sides, slot, neutral_element(ReduceOp::max, form.dtype));
    auto pool = image_dims == 2 ? at::max_pool2d_with_indices : at::max_pool3d_with_indices;
    auto [values, indices] = pool(image, args.kernel, args.stride, zeros_for(args), args.dilation, false);
    std::vector<Interval> frame;
    for (auto& side : sides) frame.push_back(side.wanted(slot));
    run.outputs[0].push_back(values);
    run.outputs[1].push_back(renumbered(indices, frame, whole_frame(sides)));
  }
}

void max_pool_backward(JointCall& run, int64_t image_dims) {
  auto args = pool_args(run.call, image_dims);
  return_to_indices(run, pool_sides(args, *run.in[1], run.call.inputs[1], *run.in[0], run.call.inputs[0]));
}

// The divisor of the sum under each window.
at::Tensor divisors(const OpCall& call, const Sides& sides, size_t slot, const at::TensorOptions& options) {
  auto fixed = call.arg("divisor_override");
  if (!fixed.isNone()) return at::scalar_tensor(fixed.toInt(), options);
  bool include = call.bool_arg("count_include_pad", true);
  auto result = at::ones({}, options.dtype(at::kDouble));
  for (auto& side : sides) {
    std::vector<double> counts;
    for (auto o = side.output(slot).begin; o < side.output(slot).end; ++o) {
      auto begin = o * side.window.stride - side.window.padding;
      Interval read{begin, std::min(begin + side.window.kernel, side.size + side.window.padding)};
      counts.push_back(include ? read.size() : overlap(read, {0, side.size}).size());
    }
    result = result.unsqueeze(-1) * at::tensor(counts, at::kDouble);
  }
  return result.to(options);
}

void avg_pool(JointCall& run, int64_t image_dims) {
  auto args = pool_args(run.call, image_dims);
  auto sides = pool_sides(args, *run.in[0], run.call.inputs[0], *run.out[0], run.call.outputs[0]);
  auto fetched = fetch(run.inputs[0], sides);
  for (size_t slot = 0; slot < run.slots(); ++slot) {
    auto& rows = fetched[slot];
    if (leaves_empty(run, slot)) continue;
    auto image = pad_to_wanted(rows, sides, slot, 0);
    auto pool = image_dims == 2 ? at::avg_pool2d : at::avg_pool3d;
    auto sums = pool(image, args.kernel, args.stride, zeros_for(args), false, true, 1);
    auto divisor = divisors(run.call, sides, slot, rows.options());
    run.outputs[0].push_back(rows.is_floating_point() ? sums.div_(divisor) : sums.div_(divisor, "trunc"));
  }
}

void avg_pool_backward(JointCall& run, int64_t image_dims) {
  auto args = pool_args(run.call, image_dims);
  auto sides = pool_sides(args, *run.in[1], run.call.inputs[1], *run.in[0], run.call.inputs[0]);
  for (size_t slot = 0; slot < run.slots(); ++slot) {
    auto grad = run.input(0, slot);
    auto shape = run.input(1, slot).sizes().vec(), wanted = shape;
    for (auto& side : sides) {
      shape[side.dim] = side.needed(slot).size();
      wanted[side.dim] = side.wanted(slot).size();
    }
    if (grad.numel() == 0) {
      run.outputs[0].push_back(at::zeros(shape, grad.options()));
      continue;
    }
    auto share = grad / divisors(run.call, sides, slot, grad.options());
    auto image = grad.new_empty({1}).expand(wanted);  // only its shape matters
    auto backward = image_dims == 2 ? at::avg_pool2d_backward : at::avg_pool3d_backward;
    auto result = backward(share, image, args.kernel, args.stride, zeros_for(args), false, true, 1);
    run.outputs[0].push_back(crop_to_needed(result, sides, slot));
  }
  run.outputs[0] = give_back(run.outputs[0], sides);
}

std::vector<TensorForm> max_pool3d_forms(const OpCall& call) {
  auto args = pool_args(call, 3);
  auto& input = call.inputs[0];
  Ints shape(input.sizes.begin(), input.sizes.end());
  if (!has_image(input, 3)) refuse_as_plain(call);
  for (int64_t i = 0; i < 3; ++i) {
    auto& extent = shape[input.dim() - 3 + i];
    extent = at::native::pooling_output_shape<int64_t>(extent, args.kernel[i], args.padding[i], args.stride[i],
                                                       args.dilation[i], call.bool_arg("ceil_mode", false));
    if (extent <= 0) refuse_as_plain(call);
  }
  return {dense_form(shape, input.dtype), dense_form(shape, at::kLong)};
}

std::vector<TensorForm> like_second(const OpCall& call) {
  auto& sizes = call.inputs[1].sizes;
  return {dense_form(sizes, call.inputs[0].dtype)};
}

// LibTorch's max_pool1d reads the memory of CPU tensors that need no gradient; distributed tensors have none.
at::Tensor max_pool1d(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
                      at::IntArrayRef dilation, bool ceil_mode) {
  at::native::check_max_pool1d(self, kernel, stride, padding, dilation, ceil_mode);
  return std::get<0>(at::max_pool1d_with_indices(self, kernel, stride, padding, dilation, ceil_mode));
}

}  // namespace

bool has_image(const TensorForm& form, int64_t image_dims) {
  if (form.dim() != image_dims + 1 && form.dim() != image_dims + 2) return false;
  return std::all_of(form.sizes.begin() + 1, form.sizes.end(), [](auto size) { return size > 0; });
}

std::vector<Interval> whole_frame(const Sides& sides) {
  std::vector<Interval> frame;
  for (auto& side : sides) frame.push_back({0, side.size});
  return frame;
}

void return_to_indices(JointCall& run, const Sides& sides) {
  int64_t image_dims = sides.size();
  for (size_t slot = 0; slot < run.slots(); ++slot) {
    auto grad = run.input(0, slot);
    auto shape = run.input(1, slot).sizes().vec();
    std::vector<Interval> frame;
    for (auto& side : sides) {
      frame.push_back(side.needed(slot));
      shape[side.dim] = frame.back().size();
    }
    auto result = at::zeros(shape, grad.options());
    if (grad.numel()) {
      auto flat = [&](const at::Tensor& t) { return t.contiguous().flatten(t.dim() - image_dims); };
      auto indices = renumbered(run.input(2, slot), whole_frame(sides), frame);
      result.flatten(result.dim() - image_dims).scatter_add_(-1, flat(indices), flat(grad));
    }
    run.outputs[0].push_back(result);
  }
  run.outputs[0] = give_back(run.outputs[0], sides);
}

// Averages are linear, except those of integers, which are rounded.
Rule pool_rule(int64_t image_dims, bool linear, std::function<void(JointCall&)> run) {
  auto cuts = [](const OpCall& call, int64_t first, int64_t end) {
    Rows rows;
    for (auto d = first; d < end; ++d) {
      rows.push_back({Placements(call.inputs.size(), S(d)), Placements(call.outputs.size(), S(d))});
    }
    return rows;
  };
  auto rule = unless_empty(rows("pool", [=](const OpCall& call) {
    auto rows = cuts(call, 0, call.inputs[0].dim() - image_dims);
    bool rounds = linear && !at::isFloatingType(call.inputs[0].dtype);
    if (!linear || rounds) return rows;
    Placements pending(call.inputs.size(), R);  // in backward, only the shape of the image matters
    pending[0] = P_sum;
    rows.push_back({pending, {P_sum}});
    return rows;
  }));
  auto along = [=](const OpCall& call) {
    // Only the plain op knows how the gradient of an average of integers is rounded.
    bool rounds = linear && call.inputs.size() > 1 && !at::isFloatingType(call.inputs[0].dtype);
    return rounds ? Rows() : cuts(call, call.inputs[0].dim() - image_dims, call.inputs[0].dim());
  };
  return std::move(rule).with_joint(along, std::move(run));
}

void add_pools(RuleTable& t) {
  t.gradient("aten::max_pool1d", max_pool1d);
  auto rule = [](int64_t n, auto body, bool linear) {
    return pool_rule(n, linear, [=](JointCall& run) { body(run, n); });
  };
  t.add("aten::max_pool2d_with_indices", rule(2, max_pool, false));
  t.add("aten::max_pool2d_with_indices_backward", rule(2, max_pool_backward, false));
  auto pool3d = rule(3, max_pool, false).with_forms(max_pool3d_forms);
  pool3d.form.keeps_format = true;  // LibTorch's meta kernels of the others keep it
  t.add("aten::max_pool3d_with_indices", std::move(pool3d));
  t.add("aten::max_pool3d_with_indices_backward", rule(3, max_pool_backward, false).with_forms(like_second));
  t.add("aten::avg_pool2d", rule(2, avg_pool, true));
  t.add("aten::avg_pool2d_backward", rule(2, avg_pool_backward, true));
  t.add("aten::avg_pool3d", rule(3, avg_pool, true));
  t.add("aten::avg_pool3d_backward", rule(3, avg_pool_backward, true));
  t.hands_on({"aten::max_pool1d", "aten::max_pool2d", "aten::max_pool3d", "aten::avg_pool1d"});
}

}  // namespace intarsia
