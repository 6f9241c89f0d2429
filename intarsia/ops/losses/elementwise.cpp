// Losses that are a function of each element, and then perhaps reduced: mse, smooth l1, huber.

#include <ATen/ExpandUtils.h>

#include "intarsia/ops/losses/mean.h"
#include "intarsia/ops/reductions/statistics.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// loss(input, target, reduction): elementwise, or summed over everything. A mean is computed from a sum; if shards are
// equal and a guide requests it, it is a pending average.
Rule elementwise_loss() {
  auto elementwise = pointwise();
  Rule rule = rows("loss", [elementwise](const OpCall& call) {
    auto reduction = reduction_of(call);
    if (reduction == kNone) return elementwise.rows(call);
    Rows rows;
    bool mean = reduction == kMean;
    if (call.inputs[0].sizes != call.inputs[1].sizes) return rows;
    for (int64_t d = 0; d < call.inputs[0].dim(); ++d)
      rows.push_back({{S(d), S(d)}, {mean ? P_avg : P_sum}, /*if_advised=*/mean});
    return rows;
  });
  rule.aligned = true;
  rule.legal = [](const OpCall& call, const Layout& in, const Layout& out) {
    return reduction_of(call) != kMean || means_weigh_the_same(call, in, out);
  };
  return std::move(rule).with_shapes([](const OpCall& call) -> std::vector<std::vector<int64_t>> {
    return {reduction_of(call) == kNone ? broadcast_shape(call) : std::vector<int64_t>()};
  });
}

// loss_backward(grad, input, target, reduction): linear in grad, which is one number unless nothing was reduced.
Rule elementwise_loss_backward() {
  auto elementwise = pointwise();
  Rule rule = rows("loss", [elementwise](const OpCall& call) {
    if (reduction_of(call) == kMean) return Rows();
    auto rows = elementwise.rows(call);
    for (auto& pending : {P_sum, P_avg}) rows.push_back({{pending, R, R}, {pending}});  // linear in the gradient
    return rows;
  });
  rule.aligned = true;
  return std::move(rule).with_shapes(elementwise.form.shapes);
}

// The elements that two tensors broadcast to; `first` is the first of the two.
Terms elements_from(size_t first) {
  return [first](const OpCall& call) {
    double count = 1;
    auto shape = at::infer_size(call.inputs[first].sizes, call.inputs[first + 1].sizes);
    for (auto extent : shape) count *= static_cast<double>(extent);
    return std::optional(count);
  };
}

}  // namespace

void add_elementwise_losses(RuleTable& t) {
  for (const char* op : {"aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss"}) {
    t.add(op, elementwise_loss());
    t.lower(op, mean_by_sum(op, elements_from(0), /*widened=*/2));
  }
  for (const char* op : {"aten::mse_loss_backward", "aten::smooth_l1_loss_backward", "aten::huber_loss_backward"}) {
    t.add(op, elementwise_loss_backward());
    t.lower(op, mean_by_sum_backward(op, elements_from(1), /*widened=*/3));
  }
}

}  // namespace intarsia
