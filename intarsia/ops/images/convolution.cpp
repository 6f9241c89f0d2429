// Convolutions and their gradients: how they may be sharded, and what runs on a rank.

#include <ATen/ATen.h>

#include "intarsia/core/cut_axes.h"
#include "intarsia/ops/all.h"
#include "intarsia/ops/images/convolution_gradients.h"
#include "intarsia/ops/images/convolution_shapes.h"
#include "intarsia/ops/images/cut_convolution.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/empty.h"

namespace intarsia {
namespace {

// Whether sharding the channels of both tensors splits them between groups, and gives both the same groups on every
// rank.
bool cuts_between_groups(const Layout& a, int64_t a_channels, const Layout& b, int64_t b_channels, int64_t groups) {
  auto left = held_along(a, 1, a_channels), right = held_along(b, 1, b_channels);
  if (left.size() != right.size()) return true;  // not sharded alike: no row of ours
  auto a_group = a_channels / groups, b_group = b_channels / groups;
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i].begin * b_group != right[i].begin * a_group || left[i].end * b_group != right[i].end * a_group)
      return false;
    if (left[i].begin % a_group || left[i].end % a_group) return false;
  }
  return true;
}

// Whether images have no channels, or the weight is empty: the plain op then computes nothing, and returns its own
// shape.
bool has_no_channels(const OpCall& call, size_t image) {
  return call.inputs[image].sizes[1] == 0 || call.inputs[image + 1].numel() == 0;
}

int64_t groups_of(const OpCall& call) { return call.int_arg("groups", 1); }

// The number of groups on one rank: as many as its channels make.
int64_t local_groups(int64_t groups, int64_t local_channels, int64_t channels) {
  return groups == 1 ? 1 : groups * local_channels / channels;
}

void local_convolution(LocalCall& local) {
  if (has_no_channels(local.call, 0)) return local.call_plain();
  auto& stack = local.stack;
  auto input = stack[0].toTensor(), weight = stack[1].toTensor();
  auto groups = local_groups(groups_of(local.call), input.size(1), local.call.inputs[0].sizes[1]);
  auto shape = local_shape(*local.out[0], local.call.outputs[0].sizes, local.slot.coordinate);
  if (input.numel() && weight.numel() && c10::multiply_integers(shape)) {
    stack[8] = groups;
    return local.call_plain();
  }
  auto output = at::zeros(shape, input.options());
  if (stack[2].isTensor() && stack[2].toTensor().defined()) {
    auto bias_shape = std::vector<int64_t>(shape.size(), 1);
    bias_shape[1] = -1;
    if (shape[1]) output.add_(stack[2].toTensor().view(bias_shape));
  }
  stack = {output};
}

// If nothing is sharded, all ranks compute what the plain op does.
bool replicated(c10::ArrayRef<const Layout*> layouts) {
  return std::all_of(layouts.begin(), layouts.end(), [](auto* layout) { return !layout || layout->is_replicated(); });
}

void local_convolution_backward(LocalCall& local) {
  if (replicated(local.in)) return local.call_plain();
  auto& stack = local.stack;
  auto grad = stack[0].toTensor(), input = stack[1].toTensor(), weight = stack[2].toTensor();
  auto wanted = local.call.arg("output_mask").toBoolList();
  std::array<bool, 3> mask = {wanted[0], wanted[1], wanted[2]};
  auto args = conv_args(local.call, input.dim() - 2);
  args.groups = local_groups(args.groups, input.size(1), local.call.inputs[1].sizes[1]);
  auto grads = gradients_of(grad, input, weight, args, mask);
  auto if_wanted = [&](int i, const at::Tensor& tensor) { return mask[i] ? tensor : at::Tensor(); };
  stack = {if_wanted(0, grads.input), if_wanted(1, grads.weight), if_wanted(2, grads.bias)};
}

// Whether nothing is empty and channels of groups are not sharded: then the arguments are those of the plain op.
bool plain_convolution_does(const OpCall& call, c10::ArrayRef<const Layout*> in, c10::ArrayRef<const Layout*> out,
                            const Slot& slot) {
  auto channels_cut = [](const Layout* layout) { return layout && !axes_cutting(*layout, 1).empty(); };
  return holds_something(call, in, out, slot) && (groups_of(call) == 1 || !channels_cut(in[0])) &&
         (call.arg_index("output_mask") < 0 || !channels_cut(in[0]));
}

bool plain_backward_does(const OpCall& call, c10::ArrayRef<const Layout*> in, c10::ArrayRef<const Layout*> out,
                         const Slot& slot) {
  auto& summed = call.inputs[call.bool_arg("transposed", false) ? 1 : 0];
  return plain_convolution_does(call, in, out, slot) && (replicated(in) || !sums_in_blocks(summed.sizes, summed.dtype));
}

// A convolution is linear in its input and in its weight, and the bias is added once: if the result is a pending sum,
// so is the bias. Input channels are contracted; output channels are the weight's.
Rule convolution_rule() {
  auto rule = rows("convolution", [](const OpCall& call) {
    if (has_no_channels(call, 0)) return Rows();
    bool transposed = call.bool_arg("transposed", false);
    auto wo = S(transposed ? 1 : 0), wi = S(transposed ? 0 : 1);
    bool bias = call.inputs[2].defined;
    auto pending_bias = bias ? P_sum : R;
    Rows rows = {{{S(0), R, R}, {S(0)}}};
    if (groups_of(call) == 1) {
      rows.push_back({{R, wo, bias ? S(0) : R}, {S(1)}});
      rows.push_back({{S(1), wi, pending_bias}, {P_sum}});
    } else {
      rows.push_back({{S(1), S(0), bias ? S(0) : R}, {S(1)}});
    }
    rows.push_back({{P_sum, R, pending_bias}, {P_sum}});
    rows.push_back({{R, P_sum, pending_bias}, {P_sum}});
    return rows;
  });
  rule.legal = [](const OpCall& call, const Layout& in, const Layout& out) {
    auto groups = groups_of(call);
    return groups == 1 || cuts_between_groups(in, call.inputs[0].sizes[1], out, call.outputs[0].sizes[1], groups);
  };
  rule.local.run = local_convolution;
  rule.local.plain_does = plain_convolution_does;
  rule.joint = {[](const OpCall& call) {
                  Rows rows;
                  if (has_no_channels(call, 0)) return rows;
                  for (int64_t d = 2; d < call.inputs[0].dim(); ++d) rows.push_back({{S(d), R, R}, {S(d)}});
                  return rows;
                },
                convolve_cut_image};
  return rule;
}

// Batch and image are contracted in the gradients of weight and bias.
Rule convolution_backward_rule() {
  auto rule = rows("convolution", [](const OpCall& call) {
    if (has_no_channels(call, 1)) return Rows();
    bool transposed = call.bool_arg("transposed", false);
    auto wo = S(transposed ? 1 : 0), wi = S(transposed ? 0 : 1);
    Rows rows = {{{S(0), S(0), R}, {S(0), P_sum, P_sum}}};
    if (groups_of(call) == 1) {
      rows.push_back({{S(1), R, wo}, {P_sum, wo, S(0)}});
      rows.push_back({{R, S(1), wi}, {S(1), wi, R}});
    } else {
      rows.push_back({{S(1), S(1), S(0)}, {S(1), S(0), S(0)}});
    }
    rows.push_back({{P_sum, R, R}, {P_sum, P_sum, P_sum}});
    return rows;
  });
  rule.legal = [](const OpCall& call, const Layout& in, const Layout& out) {
    auto groups = groups_of(call);
    return groups == 1 || cuts_between_groups(in, call.inputs[0].sizes[1], out, call.inputs[1].sizes[1], groups);
  };
  rule.local.run = local_convolution_backward;
  rule.local.plain_does = plain_backward_does;
  rule.joint = {[](const OpCall& call) {
                  Rows rows;
                  if (has_no_channels(call, 1)) return rows;
                  for (int64_t d = 2; d < call.inputs[0].dim(); ++d)
                    rows.push_back({{S(d), S(d), R}, {S(d), P_sum, P_sum}});
                  return rows;
                },
                differentiate_cut_image};
  return rule;
}

}  // namespace

void add_convolution(RuleTable& t) {
  register_convolution_shapes();
  t.add("aten::convolution", convolution_rule());
  t.add("aten::convolution_backward", convolution_backward_rule());
  t.hands_on({"aten::conv1d", "aten::conv2d", "aten::conv3d"});
}

}  // namespace intarsia
