#include <ATen/ATen.h>
#include <ATen/native/ConvUtils.h>
#include <torch/library.h>

#include "intarsia/conv/convolution.h"

namespace intarsia {
namespace {

// What backends refuse, each in its own words, the plain op says: an output padding that no input can reach, cropping all, and
// tensors of several types.
bool looks_wrong(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, at::IntArrayRef stride,
                 at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, at::IntArrayRef shape) {
  bool fits = input.scalar_type() == weight.scalar_type() && (!bias.defined() || bias.scalar_type() == weight.scalar_type());
  for (size_t i = 0; transposed && i < output_padding.size(); ++i) {
    fits = fits && shape[i + 2] > 0 && (output_padding[i] < stride[i] || output_padding[i] < dilation[i]);
  }
  return !fits;
}

at::Tensor zeros_like_plain(const at::Tensor& like) {
  return like.defined() ? at::zeros({}, like.options().device(at::kCPU)).expand(like.sizes()) : like;
}

// LibTorch checks the arguments of a convolution and then asks the backend. The backend "meta" has only shapes.
at::Tensor shape_of_convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& given,
                                at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                                bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  auto shape = transposed ? at::native::conv_input_size(input.sizes(), weight.sizes(), padding, output_padding, stride,
                                                        dilation, groups)
                          : at::native::conv_output_size(input.sizes(), weight.sizes(), padding, stride, dilation);
  auto bias = given.value_or(at::Tensor());
  if (looks_wrong(input, weight, bias, stride, dilation, transposed, output_padding, shape)) {
    at::convolution(zeros_like_plain(input), zeros_like_plain(weight), zeros_like_plain(bias), stride, padding, dilation, transposed,
                    output_padding, groups);
  }
  return at::empty(shape, input.options());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> shapes_of_gradients(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef, at::IntArrayRef,
    at::IntArrayRef, bool, at::IntArrayRef, int64_t, std::array<bool, 3> mask) {
  auto like = [](bool wanted, const at::Tensor& t) { return wanted ? at::empty(t.sizes(), t.options()) : at::Tensor(); };
  return {like(mask[0], input), like(mask[1], weight),
          mask[2] ? at::empty({grad.size(1)}, grad.options()) : at::Tensor()};
}

}  // namespace

void register_convolution_shapes() {
  static torch::Library meta(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  static bool once = [] {
    meta.impl("convolution_overrideable", shape_of_convolution);
    meta.impl("convolution_backward_overrideable", shapes_of_gradients);
    return true;
  }();
  (void)once;
}

}  // namespace intarsia
