// Ops that read or write an image at positions which are data (grid_sample, max_unpool). The rows in question are not
// known in advance, so a dim of the image that is read or written there is not sharded; all others may be.

#include <ATen/ATen.h>

#include "intarsia/ops/all.h"
#include "intarsia/ops/images/pool.h"
#include "intarsia/propagate/forms.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/empty.h"

namespace intarsia {
namespace {

// max_unpool(self, indices, output_size, ...): batch and channels.
Rule unpool_rule(int64_t image_dims) {
  return unless_empty(rows("unpool",
                           [=](const OpCall& call) {
                             Rows rows;
                             for (int64_t d = 0; d < call.inputs[0].dim() - image_dims; ++d)
                               rows.push_back({{S(d), S(d)}, {S(d)}});
                             rows.push_back({{P_sum, R}, {P_sum}});
                             return rows;
                           }))
      .refusing({1});
}

auto unpool_forms(int64_t image_dims) {
  return [=](const OpCall& call) -> std::vector<TensorForm> {
    auto& sizes = call.inputs[0].sizes;
    auto output = call.arg("output_size").toIntVector();
    bool fits = static_cast<int64_t>(output.size()) == image_dims && sizes == call.inputs[1].sizes &&
                call.inputs[1].dtype == at::kLong && has_image(call.inputs[0], image_dims);
    if (!fits) refuse_as_plain(call);
    std::vector<int64_t> shape(sizes.begin(), sizes.end() - image_dims);
    shape.insert(shape.end(), output.begin(), output.end());
    return {dense_form(shape, call.inputs[0].dtype)};
  };
}

// grid_sampler(image [N, C, ...], grid [N, ..., d]): the image's channels, or the grid's own dims.
Rule sampler_rule(int64_t image_dims) {
  return unless_empty(rows("grid", [=](const OpCall&) {
    Rows rows = {{{S(0), S(0)}, {S(0)}}, {{S(1), R}, {S(1)}}, {{P_sum, R}, {P_sum}}, {{P_avg, R}, {P_avg}}};
    for (int64_t d = 1; d <= image_dims; ++d) rows.push_back({{R, S(d)}, {S(d + 1)}});
    return rows;
  }));
}

// (gradient, image, grid) -> (of the image, of the grid)
Rule sampler_backward_rule(int64_t image_dims) {
  return unless_empty(rows("grid", [=](const OpCall&) {
    Rows rows = {{{S(0), S(0), S(0)}, {S(0), S(0)}}, {{S(1), S(1), R}, {S(1), P_sum}}, {{P_sum, R, R}, {P_sum, P_sum}}};
    for (int64_t d = 1; d <= image_dims; ++d) rows.push_back({{S(d + 1), R, S(d)}, {P_sum, S(d)}});
    return rows;
  }));
}

auto sampler_forms(int64_t image_dims) {
  return [=](const OpCall& call) -> std::vector<TensorForm> {
    auto &image = call.inputs[0], &grid = call.inputs[1];
    bool fits = image.dim() == image_dims + 2 && grid.dim() == image.dim() && image.sizes[0] == grid.sizes[0] &&
                grid.sizes.back() == image_dims && image.dtype == grid.dtype;
    for (int64_t d = 2; fits && d < image.dim(); ++d) fits = image.sizes[d] > 0;
    if (!fits) refuse_as_plain(call);
    std::vector<int64_t> shape = {image.sizes[0], image.sizes[1]};
    shape.insert(shape.end(), grid.sizes.begin() + 1, grid.sizes.end() - 1);
    return {dense_form(shape, image.dtype)};
  };
}

std::vector<TensorForm> sampler_backward_forms(const OpCall& call) {
  auto mask = call.arg("output_mask").toBoolList();
  auto like = [&](size_t i, bool wanted) {
    return wanted ? dense_form(call.inputs[i].sizes, call.inputs[i].dtype) : TensorForm();
  };
  return {like(1, mask[0]), like(2, mask[1])};
}

}  // namespace

void add_samplers(RuleTable& t) {
  for (int64_t n : {2, 3}) {
    auto d = std::to_string(n) + "d";
    auto unpool = unpool_rule(n).with_forms(unpool_forms(n));
    unpool.form.keeps_format = n == 2;
    t.add("aten::max_unpool" + d, std::move(unpool));
    t.add("aten::grid_sampler_" + d, sampler_rule(n).with_forms(sampler_forms(n)));
    t.add("aten::grid_sampler_" + d + "_backward", sampler_backward_rule(n).with_forms(sampler_backward_forms));
  }
}

}  // namespace intarsia
