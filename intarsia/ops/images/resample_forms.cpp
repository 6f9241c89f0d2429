#include "intarsia/ops/images/resample_forms.h"

#include <algorithm>

#include "intarsia/ops/images/pool.h"
#include "intarsia/propagate/forms.h"

namespace intarsia {
namespace {

using Ints = std::vector<int64_t>;

std::vector<TensorForm> dense(at::IntArrayRef shape, at::ScalarType dtype) { return {dense_form(shape, dtype)}; }

}  // namespace

Forms adaptive_form(size_t image_dims) {
  return [=](const OpCall& call) {
    auto& sizes = call.inputs[0].sizes;
    Ints shape(sizes.begin(), sizes.end() - image_dims);
    auto output = call.arg("output_size").toIntVector();
    bool fits = output.size() == image_dims && sizes.size() > image_dims && sizes.size() <= image_dims + 2;
    for (size_t d = 1; d < sizes.size(); ++d) fits = fits && (sizes[d] > 0 || d < sizes.size() - image_dims);
    if (!fits) refuse_as_plain(call);
    shape.insert(shape.end(), output.begin(), output.end());
    return dense(shape, call.inputs[0].dtype);
  };
}

Forms reflected_form(size_t image_dims) {
  return [=](const OpCall& call) {
    auto& sizes = call.inputs[0].sizes;
    Ints shape(sizes.begin(), sizes.end());
    auto padding = call.arg("padding").toIntVector();
    if (!has_image(call.inputs[0], image_dims)) refuse_as_plain(call);
    for (size_t i = 0; i < image_dims; ++i) {
      auto dim = shape.size() - 1 - i;
      auto before = padding[2 * i], after = padding[2 * i + 1];
      if (before >= shape[dim] || after >= shape[dim]) refuse_as_plain(call);
      shape[dim] += before + after;
      if (shape[dim] < 0) refuse_as_plain(call);
      if (shape[dim] < 1) ask_plain(call);
    }
    return dense(shape, call.inputs[0].dtype);
  };
}

Forms resized_form(size_t image_dims, bool backward) {
  return [=](const OpCall& call) -> std::vector<TensorForm> {
    auto& sizes = call.inputs[0].sizes;
    auto output = call.arg("output_size").toIntVector();
    if (sizes.size() != image_dims + 2 || output.size() != image_dims || call.inputs[0].numel() == 0) return {};
    Ints shape(sizes.begin(), sizes.begin() + 2), image(sizes.begin() + 2, sizes.end());
    shape.insert(shape.end(), output.begin(), output.end());
    if (backward) {
      auto input = call.arg("input_size").toIntVector();
      if (image != output || input.size() != sizes.size() || input[0] != sizes[0] || input[1] != sizes[1]) return {};
      shape = input;
    }
    if (std::any_of(shape.begin(), shape.end(), [](auto size) { return size < 1; })) return {};
    return dense(shape, call.inputs[0].dtype);
  };
}

std::vector<TensorForm> second_form(const OpCall& call) {
  auto& sizes = call.inputs[1].sizes;
  return dense(sizes, call.inputs[0].dtype);
}

}  // namespace intarsia
