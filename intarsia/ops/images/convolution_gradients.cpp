#include "intarsia/ops/images/convolution_gradients.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/ops/images/cut_convolution.h"

namespace intarsia {
namespace {

// Note [Sums over many positions]
// The gradient of a weight is a sum over all samples and all outputs of a sample. oneDNN's direct kernels keep one
// running sum in float, whose rounding error grows with the root of the number of terms: 1e-5 of the largest weight's
// gradient at 100,000 positions, 3e-5 at a million. Its kernels that multiply matrices sum in blocks and are ten times
// as exact. Which of them runs depends on the sizes, so a rank may get the one and the plain op on the whole the other.
// So blocks of samples, and of rows if one sample is too large, are summed separately and then added up: 3e-6. Double
// has digits to spare, and 16-bit types would lose theirs in every addition.
constexpr int64_t kSummed = 1 << 14;

// A convolution (not transposed) whose gradients of weight and bias are requested.
struct Summed {
  at::Tensor grad, input, weight;
  ConvArgs args;
  bool bias;

  // Of some samples, all their outputs.
  Summed samples(int64_t begin, int64_t count) const {
    auto part = *this;
    part.grad = grad.narrow(0, begin, count), part.input = input.narrow(0, begin, count);
    return part;
  }

  // Of some outputs along one dim. Their rows get the padding that belongs to them.
  Summed outputs(int64_t dim, Interval run) const {
    Window window{weight.size(dim), args.stride[dim - 2], args.padding[dim - 2], args.dilation[dim - 2]};
    auto rows = clip(read_by(window, run), input.size(dim));
    auto part = *this;
    part.grad = grad.narrow(dim, run.begin, run.size());
    part.input = padded(input.narrow(dim, rows.inside.begin, rows.inside.size()), {{dim, rows.before, rows.after}});
    part.args.padding[dim - 2] = 0;
    return part;
  }
};

Gradients plain_gradients(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
                          const ConvArgs& args, std::array<bool, 3> mask) {
  std::vector<int64_t> bias_sizes = {args.transposed ? weight.size(1) * args.groups : weight.size(0)};
  auto [gi, gw, gb] =
      at::convolution_backward(grad, input, weight, at::IntArrayRef(bias_sizes), args.stride, args.padding,
                               args.dilation, args.transposed, args.output_padding, args.groups, mask);
  return {gi, gw, gb};
}

void add(Gradients& sum, const Summed& part) {
  auto term = plain_gradients(part.grad, part.input, part.weight, part.args, {false, true, part.bias});
  sum.weight = sum.weight.defined() ? sum.weight.add_(term.weight) : term.weight;
  if (part.bias) sum.bias = sum.bias.defined() ? sum.bias.add_(term.bias) : term.bias;
}

int64_t positions(at::IntArrayRef image) { return image[0] * c10::multiply_integers(image.slice(2)); }

// One sample, block by block along its longest dim.
void add_outputs(Gradients& sum, const Summed& sample) {
  auto sizes = sample.grad.sizes();
  auto dim = std::max_element(sizes.begin() + 2, sizes.end()) - sizes.begin();
  auto blocks = std::min(sizes[dim], (positions(sizes) + kSummed - 1) / kSummed);
  for (int64_t block = 0; block < blocks; ++block) {
    add(sum, sample.outputs(dim, {sizes[dim] * block / blocks, sizes[dim] * (block + 1) / blocks}));
  }
}

Gradients sum_in_blocks(const Summed& whole) {
  Gradients sum;
  auto samples = whole.grad.size(0), of_sample = positions(whole.grad.sizes()) / samples;
  auto together = std::max<int64_t>(1, kSummed / of_sample);
  for (int64_t first = 0; first < samples; first += together) {
    auto part = whole.samples(first, std::min(together, samples - first));
    of_sample > kSummed ? add_outputs(sum, part) : add(sum, part);
  }
  return sum;
}

// The weight's gradient of a transposed convolution is that of an ordinary one with input and gradient swapped, unless
// the output has rows at its end that would make another window.
bool has_other_windows(const ConvArgs& args) {
  for (size_t i = 0; args.transposed && i < args.stride.size(); ++i) {
    if (args.output_padding[i] >= args.stride[i]) return true;
  }
  return false;
}

Summed the_other_way(Summed transposed) {
  std::swap(transposed.grad, transposed.input);
  transposed.args.transposed = false;
  transposed.args.output_padding.assign(transposed.args.stride.size(), 0);
  return transposed;
}

}  // namespace

bool sums_in_blocks(at::IntArrayRef shape, at::ScalarType dtype) {
  return dtype == at::kFloat && positions(shape) > kSummed;
}

at::Tensor bias_gradient(const at::Tensor& grad) {
  std::vector<int64_t> summed = {0};
  for (int64_t d = 2; d < grad.dim(); ++d) summed.push_back(d);
  return at::sum(grad, summed);
}

Gradients gradients_of(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight, const ConvArgs& args,
                       std::array<bool, 3> mask) {
  if (grad.numel() == 0 || input.numel() == 0 || weight.numel() == 0) {
    return {at::zeros(input.sizes(), input.options()), at::zeros(weight.sizes(), weight.options()),
            bias_gradient(grad)};
  }
  auto& summed = args.transposed ? input : grad;
  if (!mask[1] || !sums_in_blocks(summed.sizes(), summed.scalar_type()) || has_other_windows(args)) {
    return plain_gradients(grad, input, weight, args, mask);
  }
  Summed whole{grad, input, weight, args, mask[2] && !args.transposed};
  auto result = sum_in_blocks(args.transposed ? the_other_way(whole) : whole);
  if (mask[2] && args.transposed) result.bias = bias_gradient(grad);
  if (mask[0]) result.input = plain_gradients(grad, input, weight, args, {true, false, false}).input;
  return result;
}

}  // namespace intarsia
