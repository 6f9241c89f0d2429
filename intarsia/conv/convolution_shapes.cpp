#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/native/ConvUtils.h>
#include <torch/library.h>

#include "intarsia/conv/convolution.h"

namespace intarsia {
namespace {

// Backends refuse an output padding that no input can reach, and to crop all, each in its own words: the plain op says them.
void check_transposed(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
                      at::IntArrayRef dilation, at::IntArrayRef output_padding, int64_t groups, at::IntArrayRef shape) {
  bool fits = std::all_of(shape.begin() + 2, shape.end(), [](auto extent) { return extent > 0; });
  for (size_t i = 0; i < output_padding.size(); ++i) {
    fits = fits && (output_padding[i] < stride[i] || output_padding[i] < dilation[i]);
  }
  if (fits) return;
  auto zeros = [](const at::Tensor& like) { return at::zeros({}, like.options().device(at::kCPU)).expand(like.sizes()); };
  at::convolution(zeros(input), zeros(weight), {}, stride, padding, dilation, true, output_padding, groups);
}

// LibTorch checks the arguments of a convolution and then asks the backend. The backend "meta" has only shapes.
at::Tensor shape_of_convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>&,
                                at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                                bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  auto shape = transposed ? at::native::conv_input_size(input.sizes(), weight.sizes(), padding, output_padding, stride,
                                                        dilation, groups)
                          : at::native::conv_output_size(input.sizes(), weight.sizes(), padding, stride, dilation);
  if (transposed) check_transposed(input, weight, stride, padding, dilation, output_padding, groups, shape);
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
