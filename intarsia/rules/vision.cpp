// Sampling of images at given places, and transforms along some dims: images, channels and places may be cut.

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/empty.h"
#include "intarsia/rules/families.h"

namespace intarsia {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;

// grid_sampler(input [N, C, ...], grid [N, places..., dims]) -> [N, C, places...]: linear in the input.
Rule grid_sampler() {
  Rule rule = rows("grid", [](const OpCall& call) {
    Rows rows = {{{S(0), S(0)}, {S(0)}}, {{S(1), R}, {S(1)}}, {{P_sum, R}, {P_sum}}, {{P_avg, R}, {P_avg}}};
    for (int64_t d = 1; d + 1 < call.inputs[1].dim(); ++d) rows.push_back({{R, S(d)}, {S(d + 1)}});
    return rows;
  });
  rule.shapes = [](const OpCall& call) -> Shapes {
    auto &input = call.inputs[0].sizes, &grid = call.inputs[1].sizes;
    std::vector<int64_t> shape = {input[0], input[1]};
    shape.insert(shape.end(), grid.begin() + 1, grid.end() - 1);
    return {shape};
  };
  rule.dtypes = [](const OpCall& call) { return std::vector<c10::ScalarType>{call.inputs[0].dtype}; };
  return unless_empty(std::move(rule));
}

// backward(grad, input, grid): every channel adds to the gradient of a place, every place to that of the input.
Rule grid_sampler_backward() {
  Rule rule = rows("grid", [](const OpCall& call) {
    Rows rows = {{{S(0), S(0), S(0)}, {S(0), S(0)}}, {{S(1), S(1), R}, {S(1), P_sum}}, {{P_sum, R, R}, {P_sum, P_sum}}};
    for (int64_t d = 1; d + 1 < call.inputs[2].dim(); ++d) rows.push_back({{S(d + 1), R, S(d)}, {P_sum, S(d)}});
    return rows;
  });
  rule.shapes = [](const OpCall& call) -> Shapes { return {sizes_of(call.inputs[1]), sizes_of(call.inputs[2])}; };
  rule.dtypes = [](const OpCall& call) {
    auto dtype = call.inputs[1].dtype;
    bool asked = call.arg("output_mask").toBoolList()[0];
    return std::vector<c10::ScalarType>{asked ? dtype : c10::ScalarType::Undefined, dtype};
  };
  return unless_empty(std::move(rule));
}

// affine_grid_generator(theta [N, ...], size) and its gradient: the op is told the batch in its size. Linear.
Rule affine_grid(bool backward) {
  Rule rule = rows("grid", [](const OpCall&) {
    return Rows{{{S(0)}, {S(0)}}, {{P_sum}, {P_sum}}, {{P_avg}, {P_avg}}};
  });
  rule.shapes = [backward](const OpCall& call) -> Shapes {
    auto size = call.arg("size").toIntVector();
    auto spatial = static_cast<int64_t>(size.size()) - 2;
    if (backward) return {{size[0], spatial, spatial + 1}};
    std::vector<int64_t> shape = {size[0]};
    shape.insert(shape.end(), size.begin() + 2, size.end());
    shape.push_back(spatial);
    return {shape};
  };
  rule.dtypes = [](const OpCall& call) { return std::vector<c10::ScalarType>{call.inputs[0].dtype}; };
  return std::move(rule).with_local([](LocalCall& local) {
    auto size = local.stack[1].toIntVector();
    size[0] = local.stack[0].toTensor().size(0);
    local.stack[1] = size;
    zeros_if_empty(local);
  });
}

// A Fourier transform is linear, and independent of the dims that it does not name.
Rule fourier() {
  Rule rule = rows("fourier", [](const OpCall& call) {
    Rows rows = {{{P_sum}, {P_sum}}, {{P_avg}, {P_avg}}};
    auto dims = call.dims_arg("dim", call.inputs[0].dim());
    for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
      if (std::find(dims.begin(), dims.end(), d) == dims.end()) rows.push_back({{S(d)}, {S(d)}});
    }
    return rows;
  });
  rule.aligned = true;
  return unless_empty(std::move(rule));
}

}  // namespace

void add_vision_rules(RuleTable& t) {
  for (auto op : {"aten::grid_sampler_2d", "aten::grid_sampler_3d"}) {
    t[op] = grid_sampler();
    t[std::string(op) + "_backward"] = grid_sampler_backward();
  }
  t["aten::affine_grid_generator"] = affine_grid(false);
  t["aten::affine_grid_generator_backward"] = affine_grid(true);
  for (auto op : {"aten::_fft_r2c", "aten::_fft_c2c", "aten::_fft_c2r"}) t[op] = fourier();
}

}  // namespace intarsia
