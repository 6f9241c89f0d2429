// Unfold (im2col) and fold (col2im) of sharded images.

#include <ATen/ATen.h>
#include <ATen/native/im2col_shape_check.h>

#include "intarsia/core/cut_axes.h"
#include "intarsia/ops/all.h"
#include "intarsia/ops/images/side.h"
#include "intarsia/propagate/forms.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/empty.h"

namespace intarsia {
namespace {

using Ints = std::vector<int64_t>;

// Note [How columns are sharded]
// Unfolding turns an image [N, C, H, W] into columns [N, C * K, L]: K = kh * kw positions of the kernel, and L = oh *
// ow windows, row by row. Sharding H shards L, where a rank computes the rows of windows that its share touches.
// Sharding W gives every rank a part of each row of windows: SS(2, oh). One dim cannot be sharded both ways, so one of
// them moves. Sharding C shards C * K, where a rank fetches the channels that its share touches.
struct Columns {
  Ints kernel, dilation, padding, stride;
  int64_t channels, height, width;  // of the image
  int64_t down, across;             // windows
  int64_t first;                    // the dim of the channels: 0 without a batch

  int64_t positions() const { return kernel[0] * kernel[1]; }
  Window window(int i) const { return {kernel[i], stride[i], padding[i], dilation[i]}; }
};

Ints pair_arg(const OpCall& call, const char* name) {
  auto values = call.arg(name).toIntVector();
  if (values.size() != 2) refuse_as_plain(call);
  return values;
}

int64_t windows_along(int64_t size, const Window& w) {
  return at::native::sliding_window_count(size, w.padding, w.dilation, w.kernel, w.stride);
}

Columns read_columns(const OpCall& call, bool fold) {
  Columns c{pair_arg(call, "kernel_size"),
            pair_arg(call, "dilation"),
            pair_arg(call, "padding"),
            pair_arg(call, "stride"),
            0,
            0,
            0,
            0,
            0,
            0};
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
  c.down = windows_along(c.height, c.window(0));
  c.across = windows_along(c.width, c.window(1));
  return c;
}

// Checks as the plain op does, with its error texts.
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

// Both are linear. In the rows of a fold, image and columns are swapped.
Rule columns_rule(bool fold) {
  auto rule = unless_empty(rows("unfold", [=](const OpCall& call) {
    Rows rows = {{{P_sum}, {P_sum}}};
    if (read_columns(call, fold).first == 1) rows.push_back({{S(0)}, {S(0)}});
    return rows;
  }));
  rule.joint.rows = [=](const OpCall& call) {
    auto c = read_columns(call, fold);
    auto channels = c.first, down = c.first + 1, across = c.first + 2, windows = c.first + 1;
    auto each_row = c.down == 1 ? S(windows) : Placement(StridedShard(windows, c.down));
    Rows rows = {{{S(channels)}, {S(channels)}}, {{S(across)}, {each_row}}, {{S(down)}, {S(windows)}}};
    for (auto& row : rows) {
      if (fold) std::swap(row.in, row.out);
    }
    return rows;
  };
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

// Which rows and channels of the image each rank needs for its share of the columns. Folding is the reverse: every rank
// folds its own columns, and sends the sums to the ranks that hold the image there.
struct Unfolding {
  Columns c;
  int64_t channels;  // the dim
  const Axis& channel_axis;
  RowPlan channel_plan;
  std::vector<Interval> channel_shares,
      window_shares;  // of the columns, per member; of the windows only where H is sharded, or nothing
  Sides sides;

  // All columns of the channels and rows of windows that a share touches, instead of the share; and the reverse.
  at::Tensor share_of(const at::Tensor& columns, size_t slot) const {
    return at::constant_pad_nd(columns, around(slot, -1)).contiguous();
  }
  at::Tensor around_share(const at::Tensor& share, size_t slot) const {
    return at::constant_pad_nd(share, around(slot, 1));
  }

 private:
  Ints around(size_t slot, int64_t sign) const {
    auto member = channel_axis.position(slot);
    auto all = times(channel_plan.needed[member], c.positions()), share = channel_shares[member];
    Ints pads = {0, 0, sign * (share.begin - all.begin), sign * (all.end - share.end)};
    if (window_shares.empty()) return pads;
    auto rows = times(sides[0].output(slot), c.across), windows = window_shares[sides[0].axis.position(slot)];
    pads[0] = sign * (windows.begin - rows.begin), pads[1] = sign * (rows.end - windows.end);
    return pads;
  }
};

Side side_of(const Columns& c, int i, const Layout& image, int64_t dim, int64_t size, std::vector<Interval> outputs) {
  Side side{dim,
            size,
            c.window(i),
            Axis::of(image.mesh(), axes_cutting(image, dim)),
            std::move(outputs),
            {dim, held_along(image, dim, size), {}}};
  for (auto& o : side.outputs) side.plan.needed.push_back(clip(read_by(side.window, o), size).inside);
  return side;
}

Unfolding unfolding(const Columns& c, const Layout& image, const Layout& columns) {
  auto channels = c.first, down = c.first + 1, across = c.first + 2, windows = c.first + 1;
  auto& channel_axis = Axis::of(image.mesh(), axes_cutting(image, channels));
  Unfolding u{c,
              channels,
              channel_axis,
              {channels, held_along(image, channels, c.channels), {}},
              held_along(columns, channels, c.channels * c.positions()),
              {},
              {}};
  for (auto& share : u.channel_shares) u.channel_plan.needed.push_back(covering(share, c.positions()));
  std::vector<Interval> rows = {{0, c.down}};
  if (axes_cutting(image, across).empty()) {
    u.window_shares = held_along(columns, windows, c.down * c.across);
    rows.clear();
    for (auto& share : u.window_shares) rows.push_back(covering(share, c.across));
  }
  u.sides.push_back(side_of(c, 0, image, down, c.height, rows));
  u.sides.push_back(side_of(c, 1, image, across, c.width, held_along(image, across, c.across)));
  return u;
}

void unfold(JointCall& run) {
  auto u = unfolding(read_columns(run.call, false), *run.in[0], *run.out[0]);
  auto fetched = fetch(fetch_rows(run.inputs[0], u.channel_plan, u.channel_axis), u.sides);
  for (size_t slot = 0; slot < run.slots(); ++slot) {
    auto shape = run.output_shape(0, slot);
    if (c10::multiply_integers(shape) == 0) {
      run.outputs[0].push_back(at::empty(shape, fetched[slot].options()));
      continue;
    }
    auto image = pad_to_wanted(fetched[slot], u.sides, slot, 0);
    run.outputs[0].push_back(u.share_of(at::im2col(image, u.c.kernel, u.c.dilation, {0, 0}, u.c.stride), slot));
  }
}

// What a rank's columns add to the rows and channels of the image from which they come.
at::Tensor folded(const Unfolding& u, const at::Tensor& share, size_t slot) {
  auto &down = u.sides[0], &across = u.sides[1];
  auto shape = share.sizes().vec();
  shape.back() = down.needed(slot).size();
  shape[u.channels] = u.channel_plan.needed[u.channel_axis.position(slot)].size();
  shape.push_back(across.needed(slot).size());
  if (share.numel() == 0 || c10::multiply_integers(shape) == 0) return at::zeros(shape, share.options());
  auto columns = u.around_share(share, slot);
  auto image = at::col2im(columns, {down.wanted(slot).size(), across.wanted(slot).size()}, u.c.kernel, u.c.dilation,
                          {0, 0}, u.c.stride);
  return crop_to_needed(image, u.sides, slot);
}

void fold(JointCall& run) {
  auto u = unfolding(read_columns(run.call, true), *run.out[0], *run.in[0]);
  Shards images;
  for (size_t slot = 0; slot < run.slots(); ++slot) images.push_back(folded(u, run.input(0, slot), slot));
  run.outputs[0] = return_rows(give_back(std::move(images), u.sides), u.channel_plan, u.channel_axis);
}

}  // namespace

void add_unfolds(RuleTable& t) {
  auto rule = columns_rule(false).with_forms(unfold_forms);
  rule.joint.run = unfold;
  t.add("aten::im2col", std::move(rule));
  auto back = columns_rule(true).with_forms(fold_forms);
  back.joint.run = fold;
  t.add("aten::col2im", std::move(back));
}

}  // namespace intarsia
