// Sampling of images at given places: images, channels and places may be cut.

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

// grid_sampler(input [N, C, ...], grid [N, places..., dims]) -> [N, C, places...]: linear in the input.
Rule grid_sampler() {
  return unless_empty(rows("grid", [](const OpCall& call) {
    Rows rows = {{{S(0), S(0)}, {S(0)}}, {{S(1), R}, {S(1)}}, {{P_sum, R}, {P_sum}}, {{P_avg, R}, {P_avg}}};
    for (int64_t d = 1; d + 1 < call.inputs[1].dim(); ++d) rows.push_back({{R, S(d)}, {S(d + 1)}});
    return rows;
  }).with_shapes([](const OpCall& call) -> Shapes {
    auto &input = call.inputs[0].sizes, &grid = call.inputs[1].sizes;
    std::vector<int64_t> shape = {input[0], input[1]};
    shape.insert(shape.end(), grid.begin() + 1, grid.end() - 1);
    return {shape};
  }).with_dtypes([](const OpCall& call) -> Dtypes { return {call.inputs[0].dtype}; }));
}

// backward(grad, input, grid): every channel adds to the gradient of a place, every place to that of the input.
Rule grid_sampler_backward() {
  return unless_empty(rows("grid", [](const OpCall& call) {
    Rows rows = {{{S(0), S(0), S(0)}, {S(0), S(0)}}, {{S(1), S(1), R}, {S(1), P_sum}}, {{P_sum, R, R}, {P_sum, P_sum}}};
    for (int64_t d = 1; d + 1 < call.inputs[2].dim(); ++d) rows.push_back({{S(d + 1), R, S(d)}, {P_sum, S(d)}});
    return rows;
  }).with_shapes([](const OpCall& call) -> Shapes {
    return {sizes_of(call.inputs[1]), sizes_of(call.inputs[2])};
  }).with_dtypes([](const OpCall& call) -> Dtypes {
    auto dtype = call.inputs[1].dtype;
    bool asked = call.arg("output_mask").toBoolList()[0];
    return {asked ? dtype : c10::ScalarType::Undefined, dtype};
  }));
}

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

// affine_grid_generator(theta [N, ...], size) and its gradient: the op is told the batch in its size. Linear.
Rule affine_grid(Shapes (*shapes)(const OpCall&)) {
  return rows("grid", [](const OpCall&) {
    return Rows{{{S(0)}, {S(0)}}, {{P_sum}, {P_sum}}, {{P_avg}, {P_avg}}};
  }).with_shapes(shapes).with_dtypes([](const OpCall& call) -> Dtypes {
    return {call.inputs[0].dtype};
  }).with_local([](LocalCall& local) {
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

void add_vision(RuleTable& t) {
  t.add({"aten::grid_sampler_2d", "aten::grid_sampler_3d"}, grid_sampler());
  t.add({"aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward"}, grid_sampler_backward());
  t.add("aten::affine_grid_generator", affine_grid(grid_shape));
  t.add("aten::affine_grid_generator_backward", affine_grid(theta_shape));
  t.stays_whole("aten::affine_grid_generator_backward");
  t.gradient("aten::affine_grid_generator_backward", affine_grid_backward);
}

}  // namespace intarsia
