// The grids at which grid_sample reads an image, made by affine maps: one map per sample, so samples may be sharded.

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/empty.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;
using Dtypes = std::vector<c10::ScalarType>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// [N, dims, dims + 1] for a grid of size [N, C, places...]
Shapes theta_shape(const OpCall& call) {
  auto size = call.arg("size").toIntVector();
  auto spatial = static_cast<int64_t>(size.size()) - 2;
  return {{size[0], spatial, spatial + 1}};
}

// [N, places..., dims]
Shapes grid_shape(const OpCall& call) {
  auto size = call.arg("size").toIntVector();
  std::vector<int64_t> shape = {size[0]};
  shape.insert(shape.end(), size.begin() + 2, size.end());
  shape.push_back(static_cast<int64_t>(size.size()) - 2);
  return {shape};
}

// affine_grid_generator(theta [N, ...], size) and its gradient: the op gets the batch size in its size argument.
// Linear.
Rule affine_grid(Shapes (*shapes)(const OpCall&)) {
  return rows("grid", [](const OpCall&) { return Rows{{{S(0)}, {S(0)}}, {{P_sum}, {P_sum}}, {{P_avg}, {P_avg}}}; })
      .with_shapes(shapes)
      .with_dtypes([](const OpCall& call) -> Dtypes { return {call.inputs[0].dtype}; })
      .with_local([](LocalCall& local) {
        auto size = local.stack[1].toIntVector();
        size[0] = local.stack[0].toTensor().size(0);
        local.stack[1] = size;
        zeros_if_empty(local);
      });
}

// The grid is linear in theta, so each of the two ops is the gradient of the other.
struct AffineGridBackward : torch::autograd::Function<AffineGridBackward> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& grad, at::IntArrayRef size, bool align_corners) {
    ctx->saved_data["size"] = size.vec();
    ctx->saved_data["align_corners"] = align_corners;
    at::AutoDispatchBelowADInplaceOrView guard;
    return at::affine_grid_generator_backward(grad, size, align_corners);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto size = ctx->saved_data["size"].toIntVector();
    return {at::affine_grid_generator(grads[0], size, ctx->saved_data["align_corners"].toBool()), {}, {}};
  }
};

at::Tensor affine_grid_backward(const at::Tensor& grad, at::IntArrayRef size, bool align_corners) {
  return AffineGridBackward::apply(grad, size, align_corners);
}

}  // namespace

void add_affine_grid(RuleTable& t) {
  t.add("aten::affine_grid_generator", affine_grid(grid_shape));
  t.add("aten::affine_grid_generator_backward", affine_grid(theta_shape));
  t.stays_whole("aten::affine_grid_generator_backward");
  t.gradient("aten::affine_grid_generator_backward", affine_grid_backward);
}

}  // namespace intarsia
