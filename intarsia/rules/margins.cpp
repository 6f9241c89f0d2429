// Losses of whole samples: margins between classes, and alignments of sequences. Samples may be cut, classes may not.

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/families.h"

namespace intarsia {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;
constexpr int64_t kNone = at::Reduction::None, kMean = at::Reduction::Mean, kSum = at::Reduction::Sum;

int64_t samples_in(const TensorForm& input) { return input.dim() < 2 ? 1 : input.sizes[0]; }

// loss(input [N, C], target, ...): the plain op leaves its result unwritten where there are no samples.
Rule margin_loss(size_t outputs) {
  Rule rule = rows("loss", [outputs](const OpCall& call) {
    Rows rows;
    auto reduction = call.int_arg("reduction", kMean);
    if (call.inputs[0].dim() != 2 || reduction == kMean) return rows;
    Row row{Placements(call.inputs.size(), R), {reduction == kNone ? S(0) : P_sum}};
    row.in[0] = row.in[1] = S(0);
    if (outputs == 2) row.out.push_back(S(0));  // which classes are targets, per sample
    rows.push_back(std::move(row));
    return rows;
  });
  rule.shapes = [outputs](const OpCall& call) -> Shapes {
    bool each = call.int_arg("reduction", kMean) == kNone && call.inputs[0].dim() == 2;
    Shapes shapes = {each ? std::vector<int64_t>{samples_in(call.inputs[0])} : std::vector<int64_t>()};
    if (outputs == 2) shapes.push_back(sizes_of(call.inputs[1]));
    return shapes;
  };
  rule.dtypes = [outputs](const OpCall& call) {
    return std::vector<c10::ScalarType>(outputs, call.inputs[0].dtype);
  };
  return std::move(rule).with_local([](LocalCall& local) {
    bool nothing = local.stack[0].toTensor().numel() == 0;
    local.call_plain();
    if (nothing) local.stack[0].toTensor().zero_();
  });
}

// backward(grad, input, target, ...): the gradient is one number unless nothing was reduced. Anything after the target
// is per sample, too, but for the weights of classes.
Rule margin_loss_backward(const char* per_class) {
  Rule rule = rows("loss", [per_class](const OpCall& call) {
    Rows rows;
    auto reduction = call.int_arg("reduction", kMean);
    if (call.inputs[1].dim() != 2 || reduction == kMean) return rows;
    Row row{Placements(call.inputs.size(), S(0)), {S(0)}};
    if (reduction != kNone) row.in[0] = R;
    if (call.arg_index(per_class) >= 0) row.in.back() = R;
    rows.push_back(std::move(row));
    return rows;
  });
  rule.shapes = [](const OpCall& call) -> Shapes { return {sizes_of(call.inputs[1])}; };
  rule.dtypes = [](const OpCall& call) { return std::vector<c10::ScalarType>{call.inputs[1].dtype}; };
  return rule;
}

// A mean over samples is a sum divided by their number.
Decomposition mean_by_sum(const char* op, size_t reduction_arg) {
  return [=](std::vector<c10::IValue>& stack) {
    if (stack[reduction_arg].toInt() != kMean || stack[0].toTensor().dim() != 2) return false;
    auto count = static_cast<double>(stack[0].toTensor().size(0));
    stack[reduction_arg] = kSum;
    c10::Dispatcher::singleton().findSchemaOrThrow(op, "").callBoxed(stack);
    stack[0] = at::div(stack[0].toTensor(), count);
    return true;
  };
}

Decomposition mean_by_sum_backward(const char* op, size_t reduction_arg) {
  return [=](std::vector<c10::IValue>& stack) {
    if (stack[reduction_arg].toInt() != kMean || stack[1].toTensor().dim() != 2) return false;
    stack[0] = at::div(stack[0].toTensor(), static_cast<double>(stack[1].toTensor().size(0)));
    stack[reduction_arg] = kSum;
    c10::Dispatcher::singleton().findSchemaOrThrow(op, "").callBoxed(stack);
    return true;
  };
}

// --- ctc_loss(log_probs [T, N, C], targets [N, S] or joined, lengths): every sample of the batch is on its own.

struct Samples {
  int64_t first, count;
};

// The samples of this rank, by the layout of the tensor that has them in `dim`.
Samples samples_of(const LocalCall& local, size_t input, int64_t dim) {
  auto& form = local.call.inputs[input];
  auto coordinate = local.slot.coordinate;
  return {local_offset(*local.in[input], form.sizes, coordinate)[dim], local_shape(*local.in[input], form.sizes, coordinate)[dim]};
}

int64_t longest(const std::vector<int64_t>& lengths) {
  return lengths.empty() ? 0 : std::max<int64_t>(0, *std::max_element(lengths.begin(), lengths.end()));
}

// Keeps the lengths, and of joined targets the part, of this rank's samples.
void own_samples(LocalCall& local, const Samples& mine, size_t targets, size_t lengths) {
  auto all = local.stack[lengths + 1].toIntVector();
  for (auto arg : {lengths, lengths + 1}) {
    auto list = local.stack[arg].toIntVector();
    local.stack[arg] = std::vector<int64_t>(list.begin() + mine.first, list.begin() + mine.first + mine.count);
  }
  auto joined = local.stack[targets].toTensor();
  if (joined.dim() != 1) return;
  auto begin = std::accumulate(all.begin(), all.begin() + mine.first, int64_t{0});
  auto end = std::accumulate(all.begin() + mine.first, all.begin() + mine.first + mine.count, begin);
  local.stack[targets] = joined.slice(0, begin, end).contiguous();
}

Rule ctc_loss() {
  Rule rule = rows("loss", [](const OpCall& call) {
    if (call.inputs[0].dim() != 3) return Rows();
    return Rows{{{S(1), call.inputs[1].dim() == 1 ? R : S(0)}, {S(0), S(0)}}};
  });
  rule.shapes = [](const OpCall& call) -> Shapes {
    auto& scores = call.inputs[0].sizes;
    auto width = 2 * longest(call.arg("target_lengths").toIntVector()) + 1;
    if (scores.size() < 3) return {{}, {scores[0], width}};
    return {{scores[1]}, {scores[1], scores[0], width}};
  };
  rule.dtypes = [](const OpCall& call) { return std::vector<c10::ScalarType>(2, call.inputs[0].dtype); };
  return std::move(rule).with_local([](LocalCall& local) {
    auto scores = local.stack[0].toTensor();
    auto width = 2 * longest(local.stack[3].toIntVector()) + 1;
    if (scores.dim() != 3) return local.call_plain();
    auto mine = samples_of(local, 0, 1);
    if (mine.count == 0) {
      local.stack = {at::empty({0}, scores.options()), at::empty({0, scores.size(0), width}, scores.options())};
      return;
    }
    own_samples(local, mine, 1, 2);
    local.call_plain();
    auto paths = local.stack[1].toTensor();  // as wide as this rank's longest target
    local.stack[1] = at::constant_pad_nd(paths, {0, width - paths.size(2)});
  });
}

// backward(grad [N], log_probs, targets, lengths, lengths, loss [N], paths [N, T, W])
Rule ctc_loss_backward() {
  Rule rule = rows("loss", [](const OpCall& call) {
    if (call.inputs[1].dim() != 3) return Rows();
    return Rows{{{S(0), S(1), call.inputs[2].dim() == 1 ? R : S(0), S(0), S(0)}, {S(1)}}};
  });
  rule.shapes = [](const OpCall& call) -> Shapes { return {sizes_of(call.inputs[1])}; };
  rule.dtypes = [](const OpCall& call) { return std::vector<c10::ScalarType>{call.inputs[1].dtype}; };
  return std::move(rule).with_local([](LocalCall& local) {
    auto scores = local.stack[1].toTensor();
    if (scores.dim() != 3) return local.call_plain();
    auto mine = samples_of(local, 1, 1);
    if (mine.count == 0) {
      local.stack = {at::zeros_like(scores)};
      return;
    }
    own_samples(local, mine, 2, 3);
    auto width = 2 * longest(local.stack[4].toIntVector()) + 1;
    local.stack[6] = local.stack[6].toTensor().slice(2, 0, width).contiguous();
    local.call_plain();
  });
}

}  // namespace

void add_margin_rules(RuleTable& t) {
  t["aten::multi_margin_loss"] = margin_loss(1);
  t["aten::multilabel_margin_loss_forward"] = margin_loss(2);
  t["aten::multi_margin_loss_backward"] = margin_loss_backward("weight");
  t["aten::multilabel_margin_loss_backward"] = margin_loss_backward("weight");
  t.decompose("aten::multi_margin_loss", mean_by_sum("aten::multi_margin_loss", 5));
  t.decompose("aten::multilabel_margin_loss_forward", mean_by_sum("aten::multilabel_margin_loss_forward", 2));
  t.decompose("aten::multi_margin_loss_backward", mean_by_sum_backward("aten::multi_margin_loss_backward", 6));
  t.decompose("aten::multilabel_margin_loss_backward",
              mean_by_sum_backward("aten::multilabel_margin_loss_backward", 3));
  t["aten::_ctc_loss"] = ctc_loss();
  t["aten::_ctc_loss_backward"] = ctc_loss_backward();
}

}  // namespace intarsia
