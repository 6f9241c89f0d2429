#include "intarsia/ops/images/cut_convolution.h"

#include <ATen/ATen.h>

#include "intarsia/core/cut_axes.h"
#include "intarsia/ops/images/convolution_along.h"
#include "intarsia/ops/images/convolution_gradients.h"

namespace intarsia {
namespace {

// Note [A convolution of a sharded image]
// Along each sharded dim a rank computes the outputs that it will hold, and nothing else. For them it fetches the rows
// under their windows; what extends beyond the image is padding. The plain op then runs without padding along that dim.
// A transposed convolution fetches the rows that write into its outputs, and crops what it wrote beyond them. Backward
// is the plain backward on the same fetched rows, followed by the adjoint of the fetch; weight and bias get a pending
// sum over ranks, since every output is on one rank only. This works for all sharded images; if one dim is sharded,
// Note [Interior and border] has a faster path.

// The plain op's arguments on the fetched rows: sharded dims have their padding in the tensor.
ConvArgs local_args(ConvArgs args, const CutDims& cuts, int64_t local_channels, int64_t channels) {
  for (auto& cut : cuts) args.padding[cut.dim - 2] = args.output_padding[cut.dim - 2] = 0;
  if (args.groups > 1) args.groups = args.groups * local_channels / channels;
  return args;
}

// The padding that turns fetched rows into the plain op's input.
Amounts input_padding(const CutDims& cuts, size_t slot) {
  Amounts amounts;
  for (auto& cut : cuts) {
    auto clipped = cut.clipped(slot);
    if (!cut.window.transposed) amounts.push_back({cut.dim, clipped.before, clipped.after});
  }
  return amounts;
}

// The padding that turns the plain op's result into the outputs of this rank.
Amounts output_padding(const CutDims& cuts, size_t slot) {
  Amounts amounts;
  for (auto& cut : cuts) {
    if (!cut.window.transposed) continue;
    auto written = written_by(cut.window, cut.clipped(slot).inside);
    auto out = cut.output(slot);
    amounts.push_back({cut.dim, written.begin - out.begin, out.end - written.end});
  }
  return amounts;
}

Amounts reversed(Amounts amounts) {
  for (auto& [dim, before, after] : amounts) before = -before, after = -after;
  return amounts;
}

at::Tensor with_bias(const at::Tensor& output, const at::Tensor& bias) {
  if (!bias.defined()) return output;
  std::vector<int64_t> shape(output.dim(), 1);
  shape[1] = bias.numel();
  return at::add(output, bias.view(shape));
}

at::Tensor local_convolution(const at::Tensor& fetched, const at::Tensor& weight, const at::Tensor& bias,
                             const ConvArgs& args, const CutDims& cuts, size_t slot, at::IntArrayRef shape) {
  if (!args.transposed) return convolution_of(padded(fetched, input_padding(cuts, slot)), weight, bias, args, shape);
  if (c10::multiply_integers(shape) == 0) return at::empty(shape, fetched.options());
  if (fetched.numel() == 0 || weight.numel() == 0) return with_bias(at::zeros(shape, fetched.options()), bias);
  auto result = at::convolution(fetched, weight, {}, args.stride, args.padding, args.dilation, true,
                                args.output_padding, args.groups);
  return with_bias(padded(result, output_padding(cuts, slot)), bias);  // also where nothing was written
}

Gradients local_backward(const at::Tensor& grad, at::Tensor fetched, const at::Tensor& weight, const ConvArgs& args,
                         const CutDims& cuts, size_t slot, std::array<bool, 3> mask) {
  auto amounts = input_padding(cuts, slot);
  auto input = padded(std::move(fetched), amounts);
  bool empty = grad.numel() == 0 || input.numel() == 0 || weight.numel() == 0;
  auto upstream = empty ? grad : padded(grad, reversed(output_padding(cuts, slot)));
  bool bias_here = mask[2] && args.transposed;  // of all outputs, also those that nothing was written to
  auto result = gradients_of(upstream, input, weight, args, {mask[0], mask[1], mask[2] && !bias_here});
  if (mask[0]) result.input = padded(result.input, reversed(amounts));
  if (bias_here) result.bias = bias_gradient(grad);
  return result;
}

// The needed rows of a tensor whose values do not matter.
at::Tensor without_values(const at::Tensor& shard, const CutDims& cuts, size_t slot) {
  auto shape = shard.sizes().vec();
  for (auto& cut : cuts) shape[cut.dim] = cut.plan.needed[cut.axis.position(slot)].size();
  return shard.new_zeros({1}).expand(shape);
}

}  // namespace

CutDims cut_dims(const ConvArgs& args, const DeviceMesh& mesh, const Layout& input_layout, const TensorForm& input,
                 const Layout& output_layout, const TensorForm& output, const TensorForm& weight) {
  CutDims dims;
  for (int64_t dim = 2; dim < input.dim(); ++dim) {
    auto axes = axes_cutting(input_layout, dim);
    if (axes.empty()) continue;
    auto size = input.sizes[dim];
    CutDim cut{dim,
               Axis::of(mesh, axes),
               args.window(weight, dim),
               held_along(output_layout, dim, output.sizes[dim]),
               {},
               {dim, held_along(input_layout, dim, size), {}},
               size};
    for (auto& out : cut.outputs) {
      cut.wanted.push_back(read_by(cut.window, out));
      cut.plan.needed.push_back(clip(cut.wanted.back(), size).inside);
    }
    dims.push_back(std::move(cut));
  }
  return dims;
}

at::Tensor padded(at::Tensor tensor, const Amounts& amounts) {
  std::vector<int64_t> pads(2 * tensor.dim(), 0);
  bool any = false;
  for (auto& [dim, before, after] : amounts) {
    pads[2 * (tensor.dim() - 1 - dim)] = before;
    pads[2 * (tensor.dim() - 1 - dim) + 1] = after;
    any = any || before || after;
  }
  return any ? at::constant_pad_nd(tensor, pads, 0) : tensor;
}

at::Tensor convolution_of(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                          const ConvArgs& args, at::IntArrayRef shape) {
  if (c10::multiply_integers(shape) == 0) return at::empty(shape, input.options());
  if (input.numel() == 0 || weight.numel() == 0) return with_bias(at::zeros(shape, input.options()), bias);
  return at::convolution(input, weight, bias, args.stride, args.padding, args.dilation, false, args.output_padding,
                         args.groups);
}

void convolve_cut_image(JointCall& run) {
  auto& inputs = run.call.inputs;
  auto args = conv_args(run.call, inputs[0].dim() - 2);
  auto cuts = cut_dims(args, run.mesh, *run.in[0], inputs[0], *run.out[0], run.call.outputs[0], inputs[1]);
  if (cuts.size() == 1 && !args.transposed) return convolution_along(run, args, cuts[0]);
  auto fetched = run.inputs[0];
  for (auto& cut : cuts) fetched = fetch_rows(fetched, cut.plan, cut.axis);
  for (size_t slot = 0; slot < run.slots(); ++slot) {
    auto local = local_args(args, cuts, fetched[slot].size(1), inputs[0].sizes[1]);
    run.outputs[0].push_back(local_convolution(fetched[slot], run.input(1, slot), run.input(2, slot), local, cuts, slot,
                                               run.output_shape(0, slot)));
    fetched[slot].reset();
  }
}

void differentiate_cut_image(JointCall& run) {
  auto& inputs = run.call.inputs;
  auto args = conv_args(run.call, inputs[0].dim() - 2);
  auto wanted = run.call.arg("output_mask").toBoolList();
  std::array<bool, 3> mask = {wanted[0], wanted[1], wanted[2]};
  auto cuts = cut_dims(args, run.mesh, *run.in[1], inputs[1], *run.in[0], inputs[0], inputs[2]);
  if (cuts.size() == 1 && !args.transposed) return convolution_backward_along(run, args, cuts[0], mask);
  auto fetched = run.inputs[1];
  for (auto& cut : cuts) {
    if (mask[1]) fetched = fetch_rows(fetched, cut.plan, cut.axis);
  }
  for (size_t slot = 0; slot < run.slots(); ++slot) {
    auto rows = mask[1] ? std::move(fetched[slot]) : without_values(fetched[slot], cuts, slot);
    auto local = local_args(args, cuts, rows.size(1), inputs[1].sizes[1]);
    auto grads = local_backward(run.input(0, slot), std::move(rows), run.input(2, slot), local, cuts, slot, mask);
    run.outputs[0].push_back(grads.input);
    run.outputs[1].push_back(grads.weight);
    run.outputs[2].push_back(grads.bias);
  }
  for (size_t i = cuts.size(); mask[0] && i-- > 0;) {
    run.outputs[0] = return_rows(run.outputs[0], cuts[i].plan, cuts[i].axis);
  }
}

}  // namespace intarsia
