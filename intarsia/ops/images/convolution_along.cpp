#include "intarsia/ops/images/convolution_along.h"

#include <optional>

#include <ATen/ATen.h>

#include "intarsia/ops/images/convolution_gradients.h"

namespace intarsia {
namespace {

// Note [Interior and border]
// Most outputs of a rank read only rows that it holds. It convolves those in place, as if zeros were around them, while
// the rows of others are sent. Then it recomputes the outputs at either border, from the few rows under their windows.
// In backward, one call gives the gradient of the held rows and their share of the weight's; those of the rows of
// others come from the outputs at the borders. Nothing as large as the image is copied. This requires a shard much
// wider than the window, and outputs aligned with the held rows as in a padded convolution. Each rank decides for
// itself: what is sent is the same.
struct InPlace {
  int64_t padding;                // on either side of the held rows
  std::vector<Interval> borders;  // outputs that read rows of others
};

// Below this size, two small convolutions cost more than the copy.
constexpr int64_t kWorthwhile = 1 << 15, kWindowsPerShard = 4;

std::optional<InPlace> in_place(const CutDim& cut, size_t slot, const at::Tensor& shard) {
  auto me = cut.axis.position(slot);
  auto own = cut.plan.sent(me, me), needed = cut.plan.needed[me], out = cut.outputs[me];
  auto& w = cut.window;
  if (own.size() < kWindowsPerShard * w.reach() || shard.numel() < kWorthwhile) return std::nullopt;
  if (cut.wanted[me] == own || w.stride > w.reach())
    return std::nullopt;  // nothing to add; windows with gaps between them
  auto padding = own.begin - cut.wanted[me].begin;
  if ((own.size() + 2 * padding - w.reach()) / w.stride + 1 != out.size()) return std::nullopt;
  InPlace result{padding, {}};
  if (needed.begin < own.begin) result.borders.push_back({out.begin, out.begin + (padding + w.stride - 1) / w.stride});
  auto whole = (own.end - w.reach() + w.padding) / w.stride + 1;  // the first output that reads beyond
  if (needed.end > own.end) result.borders.push_back({whole, out.end});
  return result;
}

// The plain op's arguments on a rank: its groups, and this much padding along the sharded dim.
ConvArgs args_along(const CutDim& cut, ConvArgs args, int64_t padding, int64_t local_channels, int64_t channels) {
  args.padding[cut.dim - 2] = padding;
  if (args.groups > 1) args.groups = args.groups * local_channels / channels;
  return args;
}

at::Tensor outputs_of(const at::Tensor& tensor, const CutDim& cut, size_t slot, Interval outputs) {
  return tensor.narrow(cut.dim, outputs.begin - cut.output(slot).begin, outputs.size());
}

const Piece* own_piece(const Pieces& pieces) {
  for (auto& piece : pieces) {
    if (piece.own) return &piece;
  }
  return nullptr;
}

}  // namespace

void convolution_along(JointCall& run, const ConvArgs& args, const CutDim& cut) {
  auto& shards = run.inputs[0];
  auto channels = run.call.inputs[0].sizes[1];
  auto incoming = start_fetch(shards, cut.plan, cut.axis);
  std::vector<std::optional<InPlace>> ways;
  for (size_t slot = 0; slot < run.slots(); ++slot) {
    auto& way = ways.emplace_back(in_place(cut, slot, shards[slot]));
    auto& result = run.outputs[0].emplace_back();
    if (!way) continue;
    auto local = args_along(cut, args, way->padding, shards[slot].size(1), channels);
    result = convolution_of(own_piece(incoming.pieces[slot])->values, run.input(1, slot), run.input(2, slot), local,
                            run.output_shape(0, slot));
  }
  if (incoming.wait) incoming.wait();
  for (size_t slot = 0; slot < run.slots(); ++slot) {
    auto local = args_along(cut, args, 0, shards[slot].size(1), channels);
    auto compute = [&](Interval outputs, at::IntArrayRef shape) {
      auto rows = assembled(incoming.pieces[slot], cut.dim, read_by(cut.window, outputs), shards[slot]);
      return convolution_of(rows, run.input(1, slot), run.input(2, slot), local, shape);
    };
    auto& result = run.outputs[0][slot];
    if (!ways[slot]) {
      result = compute(cut.output(slot), run.output_shape(0, slot));
      continue;
    }
    for (auto& border : ways[slot]->borders) {
      auto place = outputs_of(result, cut, slot, border);
      place.copy_(compute(border, place.sizes()));
    }
  }
}

namespace {

// The gradients on one rank; the input's comes in pieces.
struct PieceGradients {
  Pieces input;
  at::Tensor weight, bias;
};

// The rows under the windows of `outputs`; zeros in place of its own ones, and of all if values do not matter.
at::Tensor rows_of_others(const Pieces& pieces, const CutDim& cut, Interval outputs, const at::Tensor& shard,
                          bool values) {
  return assembled(values ? pieces : Pieces(), cut.dim, read_by(cut.window, outputs), shard, false);
}

PieceGradients border_gradients(PieceGradients result, const InPlace& way, const at::Tensor& grad,
                                const at::Tensor& shard, const Pieces& pieces, const at::Tensor& weight,
                                const ConvArgs& local, const CutDim& cut, size_t slot, std::array<bool, 3> mask) {
  auto me = cut.axis.position(slot);
  auto own = cut.plan.sent(me, me), needed = cut.plan.needed[me];
  for (auto& border : way.borders) {
    auto rows = rows_of_others(pieces, cut, border, shard, mask[1]);
    auto grads = gradients_of(outputs_of(grad, cut, slot, border), rows, weight, local, {mask[0], mask[1], false});
    if (mask[1]) result.weight.add_(grads.weight);
    if (!mask[0]) continue;
    bool before = border.begin == cut.output(slot).begin;
    Interval others = before ? Interval{needed.begin, own.begin} : Interval{own.end, needed.end};
    auto first = others.begin - read_by(cut.window, border).begin;
    result.input.push_back({others, grads.input.narrow(cut.dim, first, others.size()), false});
  }
  return result;
}

}  // namespace

void convolution_backward_along(JointCall& run, const ConvArgs& args, const CutDim& cut, std::array<bool, 3> mask) {
  auto& shards = run.inputs[1];
  auto channels = run.call.inputs[1].sizes[1];
  Incoming incoming;
  if (mask[1]) incoming = start_fetch(shards, cut.plan, cut.axis);
  incoming.pieces.resize(run.slots());
  std::vector<std::optional<InPlace>> ways;
  std::vector<PieceGradients> grads(run.slots());
  auto local = [&](size_t slot, int64_t padding) {
    return args_along(cut, args, padding, shards[slot].size(1), channels);
  };
  for (size_t slot = 0; slot < run.slots(); ++slot) {
    auto& way = ways.emplace_back(in_place(cut, slot, shards[slot]));
    if (!way) continue;
    auto me = cut.axis.position(slot);
    auto own = cut.plan.sent(me, me);
    auto rows = shards[slot].narrow(cut.dim, own.begin - cut.plan.held[me].begin, own.size());
    auto whole = gradients_of(run.input(0, slot), rows, run.input(2, slot), local(slot, way->padding), mask);
    grads[slot] = {{{own, whole.input, true}}, whole.weight, whole.bias};
  }
  if (incoming.wait) incoming.wait();
  for (size_t slot = 0; slot < run.slots(); ++slot) {
    auto grad = run.input(0, slot), weight = run.input(2, slot);
    auto& pieces = incoming.pieces[slot];
    if (ways[slot]) {
      grads[slot] = border_gradients(std::move(grads[slot]), *ways[slot], grad, shards[slot], pieces, weight,
                                     local(slot, 0), cut, slot, mask);
    } else {
      auto wanted = read_by(cut.window, cut.output(slot));
      auto whole = gradients_of(grad, assembled(pieces, cut.dim, wanted, shards[slot]), weight, local(slot, 0), mask);
      auto needed = cut.plan.needed[cut.axis.position(slot)];
      auto gi = mask[0] ? whole.input.narrow(cut.dim, needed.size() ? needed.begin - wanted.begin : 0, needed.size())
                        : at::Tensor();
      grads[slot] = {{{needed, gi, false}}, whole.weight, whole.bias};
    }
    run.outputs[1].push_back(grads[slot].weight);
    run.outputs[2].push_back(grads[slot].bias);
  }
  std::vector<Pieces> returned;
  for (auto& g : grads) returned.push_back(std::move(g.input));
  run.outputs[0] = mask[0] ? return_pieces(returned, cut.plan, cut.axis) : Shards(run.slots());
}

}  // namespace intarsia
