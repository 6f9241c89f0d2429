// Losses of whole samples: margins between classes. Samples may be sharded, classes may not.

#include <ATen/ATen.h>

#include "intarsia/ops/losses/mean.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

int64_t samples_in(const TensorForm& input) { return input.dim() < 2 ? 1 : input.sizes[0]; }

// loss(input [N, C], target, ...): the plain op leaves its result unwritten if there are no samples.
Rule margin_loss(size_t outputs) {
  Rule rule = rows("loss", [outputs](const OpCall& call) {
    Rows rows;
    auto reduction = reduction_of(call);
    if (call.inputs[0].dim() != 2 || reduction == kMean) return rows;
    Row row{Placements(call.inputs.size(), R), {reduction == kNone ? S(0) : P_sum}};
    row.in[0] = row.in[1] = S(0);
    if (outputs == 2) row.out.push_back(S(0));  // which classes are targets, per sample
    rows.push_back(std::move(row));
    return rows;
  });
  return std::move(rule)
      .with_shapes([outputs](const OpCall& call) {
        bool each = reduction_of(call) == kNone && call.inputs[0].dim() == 2;
        std::vector<std::vector<int64_t>> shapes(1);
        if (each) shapes[0] = {samples_in(call.inputs[0])};
        if (outputs == 2) shapes.push_back(sizes_of(call.inputs[1]));
        return shapes;
      })
      .with_dtypes(
          [outputs](const OpCall& call) { return std::vector<c10::ScalarType>(outputs, call.inputs[0].dtype); })
      .with_local([](LocalCall& local) {
        bool nothing = local.stack[0].toTensor().numel() == 0;
        local.call_plain();
        if (nothing) local.stack[0].toTensor().zero_();
      })
      .refusing({1});
}

// backward(grad, input, target, ...): the gradient is one number unless nothing was reduced. All inputs after the
// target are per sample as well, except the weights of classes.
Rule margin_loss_backward() {
  Rule rule = rows("loss", [](const OpCall& call) {
    Rows rows;
    auto reduction = reduction_of(call);
    if (call.inputs[1].dim() != 2 || reduction == kMean) return rows;
    Row row{Placements(call.inputs.size(), S(0)), {S(0)}};
    if (reduction != kNone) row.in[0] = R;
    if (call.arg_index("weight") >= 0) row.in.back() = R;
    rows.push_back(std::move(row));
    return rows;
  });
  return std::move(rule).like_input(1);
}

// The samples of a batch; for a single sample, the plain op's mean is right.
Terms samples_of_batch(size_t input) {
  return [input](const OpCall& call) {
    auto& form = call.inputs[input];
    return form.dim() == 2 ? std::optional(static_cast<double>(form.sizes[0])) : std::nullopt;
  };
}

}  // namespace

void add_margin_losses(RuleTable& t) {
  t.add("aten::multi_margin_loss", margin_loss(1));
  t.add("aten::multilabel_margin_loss_forward", margin_loss(2));
  for (const char* op : {"aten::multi_margin_loss", "aten::multilabel_margin_loss_forward"}) {
    t.lower(op, mean_by_sum(op, samples_of_batch(0)));
  }
  for (const char* op : {"aten::multi_margin_loss_backward", "aten::multilabel_margin_loss_backward"}) {
    t.add(op, margin_loss_backward());
    t.lower(op, mean_by_sum_backward(op, samples_of_batch(1)));
  }
}

}  // namespace intarsia
