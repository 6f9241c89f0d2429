#include "intarsia/ops/images/convolution_shapes.h"

#include <ATen/ATen.h>
#include <ATen/native/ConvUtils.h>
#include <torch/library.h>

namespace intarsia {
namespace {

// Whether the plain op should check the call, since each backend rejects these in its own words: an output padding that
// no input can reach, cropping everything, an empty weight, and tensors of several dtypes.
bool looks_wrong(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, at::IntArrayRef stride,
                 at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, at::IntArrayRef shape) {
  bool fits = weight.numel() > 0 && input.scalar_type() == weight.scalar_type() &&
              (!bias.defined() || bias.scalar_type() == weight.scalar_type());
  for (size_t i = 0; transposed && i < output_padding.size(); ++i) {
    fits = fits && shape[i + 2] > 0 && (output_padding[i] < stride[i] || output_padding[i] < dilation[i]);
  }
  return !fits;
}

at::Tensor zeros_like_plain(const at::Tensor& like) {
  return like.defined() ? at::zeros({}, like.options().device(at::kCPU)).expand(like.sizes()) : like;
}

// The memory format that the plain op would choose. It depends on the kernel that it would run, which LibTorch selects
// from tensors of that form. Their values are not read.
at::MemoryFormat format_of_plain(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                                 at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                                 bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  if (input.dim() < 4 || (input.is_contiguous() && weight.is_contiguous())) return at::MemoryFormat::Contiguous;
  auto plain = [](const at::Tensor& like) {
    return like.defined() ? at::from_blob(nullptr, like.sizes(), like.strides(), like.options().device(at::kCPU))
                          : like;
  };
  auto x = plain(input), w = plain(weight);
  auto backend = at::native::select_conv_backend(
      x, w, plain(bias), c10::fromIntArrayRefSlow(stride), c10::fromIntArrayRefSlow(padding),
      c10::fromIntArrayRefSlow(dilation), transposed, c10::fromIntArrayRefSlow(output_padding), groups, std::nullopt);
  return at::native::_determine_backend_memory_format(x, w, backend);
}

// LibTorch checks the arguments of a convolution and then calls the backend. The backend "meta" has only shapes.
at::Tensor shape_of_convolution(const at::Tensor& input, const at::Tensor& weight,
                                const std::optional<at::Tensor>& given, at::IntArrayRef stride, at::IntArrayRef padding,
                                at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                                int64_t groups) {
  auto shape = transposed ? at::native::conv_input_size(input.sizes(), weight.sizes(), padding, output_padding, stride,
                                                        dilation, groups)
                          : at::native::conv_output_size(input.sizes(), weight.sizes(), padding, stride, dilation);
  auto bias = given.value_or(at::Tensor());
  if (looks_wrong(input, weight, bias, stride, dilation, transposed, output_padding, shape)) {
    at::convolution(zeros_like_plain(input), zeros_like_plain(weight), zeros_like_plain(bias), stride, padding,
                    dilation, transposed, output_padding, groups);
  }
  auto format = format_of_plain(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
  return at::empty(shape, input.options().memory_format(format));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> shapes_of_gradients(const at::Tensor& grad, const at::Tensor& input,
                                                                   const at::Tensor& weight, at::IntArrayRef stride,
                                                                   at::IntArrayRef padding, at::IntArrayRef dilation,
                                                                   bool transposed, at::IntArrayRef output_padding,
                                                                   int64_t groups, std::array<bool, 3> mask) {
  auto format = format_of_plain(input, weight, {}, stride, padding, dilation, transposed, output_padding, groups);
  auto like = [=](bool wanted, const at::Tensor& t) {
    return wanted ? at::empty(t.sizes(), t.options().memory_format(format)) : at::Tensor();
  };
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
