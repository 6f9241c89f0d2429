// Unfold (im2col) and fold (col2im) of cut images.

#include <ATen/ATen.h>
#include <ATen/native/im2col_shape_check.h>

#include "intarsia/conv/side.h"
#include "intarsia/conv/spread.h"
#include "intarsia/rules/builders.h"

namespace intarsia {
namespace {

using Ints = std::vector<int64_t>;

// Note [How columns are cut]
// Unfolding makes of an image [N, C, H, W] columns [N, C * K, L]: K = kh * kw positions of the kernel, and L = oh * ow
// windows, row by row. A cut of H is a cut of L, where a rank computes the rows of windows that its share touches. A cut of
// W gives every rank a part of each row of windows: SS(2, oh). Cuts of both do not fit one dim; one of them moves.
// A cut of C is a cut of C * K, where a rank fetches the channels that its share touches.
struct Columns {
  Ints kernel, dilation, padding, stride;
  int64_t channels, height, width;  // of the image
  int64_t down, across;             // windows
  int64_t first;                    // the dim of the channels: 0 without a batch

  int64_t positions() const { return kernel[0] * kernel[1]; }
  Window window(int i, bool transposed) const { return {kernel[i], stride[i], padding[i], dilation[i], transposed}; }
};

Ints pair_arg(const OpCall& call, const char* name) {
  auto values = call.arg(name).toIntVector();
  if (values.size() != 2) refuse_as_plain(call);
  return values;
}

int64_t windows_along(int64_t size, const Window& w) { return at::native::sliding_window_count(size, w.padding, w.dilation, w.kernel, w.stride); }

Columns read_columns(const OpCall& call, bool fold) {
  Columns c{pair_arg(call, "kernel_size"), pair_arg(call, "dilation"), pair_arg(call, "padding"), pair_arg(call, "stride"),
            0, 0, 0, 0, 0, 0};
  auto& sizes = call.inputs[0].sizes;
  int64_t ndim = sizes.size();
  c.first = ndim - (fold ? 2 : 3);
  if (c.first != 0 && c.first != 1) refuse_as_plain(call);
  for (int i : {0, 1}) {
    if (c.kernel[i] <= 0 || c.dilation[i] <= 0 || c.padding[i] < 0 || c.stride[i] <= 0) refuse_as_plain(call);
  }
  auto image = fold ? pair_arg(call, "output_size") : Ints{sizes[ndim - 2], sizes[ndim - 1]};
  c.height = image[0], c.width = image[1];
  c.channels = fold ? sizes[c.first] / c.positions() : sizes[c.first];
  c.down = windows_along(c.height, c.window(0, false));
  c.across = windows_along(c.width, c.window(1, false));
  return c;
}

// Checks as the plain op does, in its words.
std::vector<TensorForm> unfold_forms(const OpCall& call) {
  auto c = read_columns(call, false);
  auto& sizes = call.inputs[0].sizes;
  auto image = at::empty(sizes, at::TensorOptions().device(at::kMeta));
  at::native::im2col_shape_check(image, {}, c.kernel[0], c.kernel[1], c.dilation[0], c.dilation[1], c.padding[0],
                                 c.padding[1], c.stride[0], c.stride[1]);
  Ints shape(sizes.begin(), sizes.begin() + c.first);
  shape.insert(shape.end(), {c.channels * c.positions(), c.down * c.across});
  return {dense_form(shape, call.inputs[0].dtype)};
}

std::vector<TensorForm> fold_forms(const OpCall& call) {
  auto c = read_columns(call, true);
  auto& sizes = call.inputs[0].sizes;
  auto columns = at::empty(sizes, at::TensorOptions().device(at::kMeta));
  at::native::col2im_shape_check(columns, {}, c.height, c.width, c.kernel[0], c.kernel[1], c.dilation[0], c.dilation[1],
                                 c.padding[0], c.padding[1], c.stride[0], c.stride[1]);
  Ints shape(sizes.begin(), sizes.begin() + c.first);
  shape.insert(shape.end(), {c.channels, c.height, c.width});
  return {dense_form(shape, call.inputs[0].dtype)};
}

// Both are linear. In the rows of a fold image and columns change places.
Rule columns_rule(bool fold) {
  auto rule = rows("unfold", [=](const OpCall& call) {
    auto c = read_columns(call, fold);
    auto channels = c.first, down = c.first + 1, across = c.first + 2, windows = c.first + 1;
    auto each_row = c.down == 1 ? S(windows) : Placement(StridedShard(windows, c.down));
    Rows rows = {{{S(channels)}, {S(channels)}}, {{S(across)}, {each_row}}, {{S(down)}, {S(windows)}}, {{P_sum}, {P_sum}}};
    if (c.first == 1) rows.push_back({{S(0)}, {S(0)}});
    for (auto& row : rows) {
      if (fold) std::swap(row.in, row.out);
    }
    return rows;
  });
  rule.legal = [=](const OpCall& call, const Layout& in, const Layout& out) {
    auto& image = fold ? out : in;
    auto first = read_columns(call, fold).first;
    return axes_cutting(image, first + 1).empty() || axes_cutting(image, first + 2).empty();
  };
  return rule;
}

Interval covering(Interval run, int64_t unit) {
  return run.size() ? Interval{run.begin / unit, (run.end + unit - 1) / unit} : Interval{0, 0};
}

Interval times(Interval run, int64_t unit) { return {run.begin * unit, run.end * unit}; }

// Output `run` of a tensor whose dim covers `have`.
at::Tensor part(const at::Tensor& tensor, int64_t dim, Interval have, Interval run) {
  return tensor.narrow(dim, run.begin - have.begin, run.size());
}

void unfold(Spread& run) {
  auto c = read_columns(run.call, false);
  auto &in = *run.in[0], &out = *run.out[0];
  auto channels = c.first, down = c.first + 1, across = c.first + 2, windows = c.first + 1;
  bool wide = !axes_cutting(in, across).empty();
  auto& channel_axis = Axis::of(run.mesh, axes_cutting(in, channels));
  auto channel_outputs = held_along(out, channels, c.channels * c.positions());
  RowPlan channel_plan{channels, held_along(in, channels, c.channels), {}};
  for (auto& held : channel_outputs) channel_plan.needed.push_back(covering(held, c.positions()));

  std::vector<Interval> shares;  // of the windows, per member of the line that cuts H
  if (!wide) shares = held_along(out, windows, c.down * c.across);
  auto side = [&](int64_t dim, int64_t size, int i, std::vector<Interval> outputs) {
    Side result{dim, size, c.window(i, false), Axis::of(run.mesh, axes_cutting(in, dim)), std::move(outputs),
                {dim, held_along(in, dim, size), {}}};
    for (auto& o : result.outputs) result.plan.needed.push_back(clip(read_by(result.window, o), size).inside);
    return result;
  };
  std::vector<Interval> rows = {{0, c.down}};
  if (!wide) {
    rows.clear();
    for (auto& share : shares) rows.push_back(covering(share, c.across));
  }
  Sides sides = {side(down, c.height, 0, rows), side(across, c.width, 1, held_along(in, across, c.across))};

  auto fetched = fetch(fetch_rows(run.inputs[0], channel_plan, channel_axis), sides);
  for (size_t slot = 0; slot < run.slots(); ++slot) {
    auto shape = run.output_shape(0, slot);
    if (c10::multiply_integers(shape) == 0) {
      run.outputs[0].push_back(at::empty(shape, fetched[slot].options()));
      continue;
    }
    auto image = pad_to_wanted(fetched[slot], sides, slot, 0);
    auto columns = at::im2col(image, c.kernel, c.dilation, {0, 0}, c.stride);
    auto member = channel_axis.position(slot);
    columns = part(columns, channels, times(channel_plan.needed[member], c.positions()), channel_outputs[member]);
    if (!wide) columns = part(columns, windows, times(sides[0].output(slot), c.across), shares[sides[0].axis.position(slot)]);
    run.outputs[0].push_back(columns.contiguous());
  }
}

// One dim of the image that a fold makes: the windows that write into each member's share of it.
struct Written {
  Window window;
  const Axis& axis;
  std::vector<Interval> outputs, windows;

  Written(const Spread& run, const Columns& c, int i, int64_t dim, int64_t size, int64_t count)
      : window(c.window(i, true)), axis(Axis::of(run.mesh, axes_cutting(*run.out[0], dim))),
        outputs(held_along(*run.out[0], dim, size)) {
    for (auto& out : outputs) windows.push_back(clip(read_by(window, out), count).inside);
  }
  Interval output(size_t slot) const { return outputs[axis.position(slot)]; }
  Interval taken(size_t slot) const { return windows[axis.position(slot)]; }
  Interval written(size_t slot) const { return written_by(window, taken(slot)); }
};

void fold(Spread& run) {
  auto c = read_columns(run.call, true);
  auto &in = *run.in[0], &out = *run.out[0];
  auto channels = c.first, down = c.first + 1, across = c.first + 2, windows = c.first + 1;
  bool wide = !axes_cutting(out, across).empty();
  auto& channel_axis = Axis::of(run.mesh, axes_cutting(in, channels));
  RowPlan channel_plan{channels, held_along(in, channels, c.channels * c.positions()), {}};
  for (auto& held : held_along(out, channels, c.channels)) channel_plan.needed.push_back(times(held, c.positions()));

  Written rows(run, c, 0, down, c.height, c.down), cols(run, c, 1, across, c.width, c.across);
  auto fetched = fetch_rows(run.inputs[0], channel_plan, channel_axis);
  if (wide) {
    for (auto& columns : fetched) columns = columns.unflatten(windows, {c.down, columns.size(windows) / std::max<int64_t>(c.down, 1)});
    fetched = fetch_rows(fetched, {across, held_along(out, across, c.across), cols.windows}, cols.axis);
  } else {
    RowPlan plan{windows, held_along(in, windows, c.down * c.across), {}};
    for (auto& run_of_rows : rows.windows) plan.needed.push_back(times(run_of_rows, c.across));
    fetched = fetch_rows(fetched, plan, rows.axis);
  }
  for (size_t slot = 0; slot < run.slots(); ++slot) {
    auto shape = run.output_shape(0, slot);
    if (c10::multiply_integers(shape) == 0 || fetched[slot].numel() == 0) {
      run.outputs[0].push_back(at::zeros(shape, fetched[slot].options()));
      continue;
    }
    auto columns = wide ? fetched[slot].flatten(windows, across) : fetched[slot];
    auto height = rows.written(slot), width = cols.written(slot);
    auto image = at::col2im(columns, {height.size(), width.size()}, c.kernel, c.dilation, {0, 0}, c.stride);
    Interval tall = rows.output(slot), broad = cols.output(slot);
    run.outputs[0].push_back(at::constant_pad_nd(image, {width.begin - broad.begin, broad.end - width.end,
                                                         height.begin - tall.begin, tall.end - height.end}));
  }
}

}  // namespace

void add_unfold_rules(RuleTable& t) {
  t.decompose("aten::im2col", spread({"aten::im2col", columns_rule(false), unfold, 3, unfold_forms}));
  t.decompose("aten::col2im", spread({"aten::col2im", columns_rule(true), fold, 2, fold_forms}));
}

}  // namespace intarsia
