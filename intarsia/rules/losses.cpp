#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// Along `dim` every element depends on every other; all other dims may be cut.
// Gradients are linear in the one that comes in, the first tensor.
Rule along_dim(int tensors) {
  Rule rule = rows("along dim", [tensors](const OpCall& call) {
    Rows rows;
    if (tensors == 2) rows = {{{P_sum, R}, {P_sum}}, {{P_avg, R}, {P_avg}}};
    auto ndim = call.inputs[0].dim();
    auto dims = call.dims_arg("dim", ndim);
    for (int64_t d = 0; d < ndim; ++d) {
      if (d != dims[0]) rows.push_back({Placements(tensors, S(d)), {S(d)}});
    }
    return rows;
  });
  rule.aligned = true;
  return rule;
}

constexpr int64_t kNone = at::Reduction::None, kMean = at::Reduction::Mean, kSum = at::Reduction::Sum;

// loss(input, target, reduction): elementwise, or summed over everything. A mean is decomposed into a sum.
Rule elementwise_loss() {
  auto elementwise = pointwise();
  Rule rule = rows("loss", [elementwise](const OpCall& call) {
    if (call.int_arg("reduction", kMean) == kNone) return elementwise.rows(call);
    Rows rows;
    if (call.int_arg("reduction", kMean) == kMean || call.inputs[0].sizes != call.inputs[1].sizes) return rows;
    for (int64_t d = 0; d < call.inputs[0].dim(); ++d) rows.push_back({{S(d), S(d)}, {P_sum}});
    return rows;
  });
  rule.shapes = [](const OpCall& call) -> std::vector<std::vector<int64_t>> {
    return {call.int_arg("reduction", kMean) == kNone ? broadcast_shape(call) : std::vector<int64_t>()};
  };
  rule.aligned = true;
  return rule;
}

// loss_backward(grad, input, target, reduction): linear in grad, which is one number unless nothing was reduced.
Rule elementwise_loss_backward() {
  auto elementwise = pointwise();
  Rule rule = rows("loss", [elementwise](const OpCall& call) {
    if (call.int_arg("reduction", kMean) == kMean) return Rows();
    auto rows = elementwise.rows(call);
    for (auto& pending : {P_sum, P_avg}) rows.push_back({{pending, R, R}, {pending}});  // linear in the gradient
    return rows;
  });
  rule.shapes = elementwise.shapes;
  rule.aligned = true;
  return rule;
}

// A loss or its gradient that is elementwise for these reductions; the others are decomposed.
Rule only_elementwise(std::vector<int64_t> reductions) {
  auto elementwise = pointwise();
  Rule rule = rows("loss", [elementwise, reductions](const OpCall& call) {
    auto reduction = call.int_arg("reduction", kMean);
    bool fits = std::find(reductions.begin(), reductions.end(), reduction) != reductions.end();
    return fits ? elementwise.rows(call) : Rows();
  });
  rule.shapes = elementwise.shapes;
  rule.aligned = true;
  return rule;
}

// A classification loss: input [N, C, d1, ...] or [C], target without C. The positions may be cut; the loss is then a
// pending sum, and a weighted mean is decomposed. The classes may be cut, too: each rank counts the targets it has.
int64_t class_dim(const TensorForm& input) { return input.dim() == 1 ? 0 : 1; }

constexpr int64_t kElsewhere = -100;  // no class of a shard has this number

// Exchanges the targets for those of this rank's classes, and the ignored index for one that no class of a shard has.
void own_targets(LocalCall& local, size_t input, size_t target_arg, size_t ignore_arg) {
  auto& form = local.call.inputs[input];
  auto dim = class_dim(form);
  auto count = local_shape(*local.in[input], form.sizes, local.slot.coordinate)[dim];
  if (count == form.sizes[dim]) return;
  auto first = local_offset(*local.in[input], form.sizes, local.slot.coordinate)[dim];
  auto target = local.stack[target_arg].toTensor();
  auto ignored = at::eq(target, local.stack[ignore_arg].toInt());
  auto wrong = at::logical_or(at::lt(target, 0), at::ge(target, form.sizes[dim])).logical_and_(ignored.logical_not());
  if (wrong.any().item<bool>()) {
    TORCH_CHECK_INDEX(false, "Target ", target.masked_select(wrong)[0].item<int64_t>(), " is out of bounds.");
  }
  auto own = at::sub(target, first);
  auto elsewhere = at::logical_or(at::lt(own, 0), at::ge(own, count)).logical_or_(ignored);
  local.stack[target_arg] = own.masked_fill(elsewhere, kElsewhere);
  local.stack[ignore_arg] = kElsewhere;
}

Rule nll_loss() {
  Rule rule = rows("loss", [](const OpCall& call) {
    Rows rows;
    auto ndim = call.inputs[0].dim();
    auto reduction = call.int_arg("reduction", kMean);
    if (reduction == kMean) return rows;
    for (int64_t d = 0; d < ndim; ++d) {
      if (d == class_dim(call.inputs[0])) {
        rows.push_back({{S(d), R, call.inputs[2].defined ? S(0) : R}, {P_sum, P_sum}});
        continue;
      }
      auto position = d == 0 ? 0 : d - 1;
      rows.push_back({{S(d), S(position), R}, {reduction == kNone ? S(position) : P_sum, P_sum}});
    }
    return rows;
  });
  rule.shapes = [](const OpCall& call) -> std::vector<std::vector<int64_t>> {
    auto& target = call.inputs[1].sizes;
    bool each = call.int_arg("reduction", kMean) == kNone;
    return {each ? std::vector<int64_t>(target.begin(), target.end()) : std::vector<int64_t>(), {}};
  };
  return std::move(rule).with_local([](LocalCall& local) {
    own_targets(local, 0, 1, 4);
    local.call_plain();
  });
}

Rule nll_loss_backward() {
  Rule rule = rows("loss", [](const OpCall& call) {
    Rows rows;
    auto ndim = call.inputs[1].dim();
    auto reduction = call.int_arg("reduction", kMean);
    bool each = reduction == kNone;
    // Only a mean divides by the total of the weights: else it may stay pending.
    for (auto& total : reduction == kMean ? Placements{R} : Placements{R, P_sum}) {
      for (int64_t d = 0; d < ndim; ++d) {
        if (d == class_dim(call.inputs[1])) {
          rows.push_back({{R, S(d), R, call.inputs[3].defined ? S(0) : R, total}, {S(d)}});
          continue;
        }
        auto position = d == 0 ? 0 : d - 1;
        rows.push_back({{each ? S(position) : R, S(d), S(position), R, total}, {S(d)}});
      }
    }
    return rows;
  });
  rule.shapes = [](const OpCall& call) -> std::vector<std::vector<int64_t>> {
    return {{call.inputs[1].sizes.begin(), call.inputs[1].sizes.end()}};
  };
  return std::move(rule).with_local([](LocalCall& local) {
    own_targets(local, 1, 2, 5);
    local.call_plain();
  });
}

double elements_of(const at::Tensor& a, const at::Tensor& b) {
  double count = 1;
  for (auto extent : at::infer_size(a.sizes(), b.sizes())) count *= static_cast<double>(extent);
  return count;
}

// A sum of many half numbers does not fit where their mean does: such tensors are summed in float, as plain ops do.
c10::ScalarType widen_halves(std::vector<c10::IValue>& stack, size_t tensors) {
  auto dtype = stack[0].toTensor().scalar_type();
  for (size_t i = 0; i < tensors; ++i) {
    auto tensor = stack[i].toTensor();
    if (at::isReducedFloatingType(tensor.scalar_type())) stack[i] = tensor.to(at::kFloat);
  }
  return dtype;
}

// A mean over elements is a sum divided by their number, whatever the shards.
Decomposition mean_by_sum(const char* op, size_t reduction_arg) {
  return [=](std::vector<c10::IValue>& stack) {
    if (stack[reduction_arg].toInt() != kMean) return false;
    auto count = elements_of(stack[0].toTensor(), stack[1].toTensor());
    stack[reduction_arg] = kSum;
    auto dtype = widen_halves(stack, 2);
    c10::Dispatcher::singleton().findSchemaOrThrow(op, "").callBoxed(stack);
    auto mean = at::div(stack[0].toTensor(), count);
    stack[0] = at::isReducedFloatingType(dtype) ? mean.to(dtype) : mean;
    return true;
  };
}

Decomposition mean_by_sum_backward(const char* op, size_t reduction_arg) {
  return [=](std::vector<c10::IValue>& stack) {
    if (stack[reduction_arg].toInt() != kMean) return false;
    auto dtype = widen_halves(stack, 3);
    stack[0] = at::div(stack[0].toTensor(), elements_of(stack[1].toTensor(), stack[2].toTensor()));
    stack[reduction_arg] = kSum;
    c10::Dispatcher::singleton().findSchemaOrThrow(op, "").callBoxed(stack);
    if (at::isReducedFloatingType(dtype)) stack[0] = stack[0].toTensor().to(dtype);
    return true;
  };
}

// The mean of a classification loss is its sum divided by the weights of all positions that count.
bool nll_mean(std::vector<c10::IValue>& stack, const char* op) {
  if (stack[3].toInt() != kMean) return false;
  stack[3] = kSum;
  c10::Dispatcher::singleton().findSchemaOrThrow(op, "").callBoxed(stack);
  stack[0] = at::div(stack[0].toTensor(), stack[1].toTensor());
  return true;
}

}  // namespace

void add_loss_rules(RuleTable& t) {
  t["aten::_log_softmax"] = t["aten::_softmax"] = along_dim(1);
  t["aten::_log_softmax_backward_data"] = t["aten::_softmax_backward_data"] = along_dim(2);
  for (const char* op : {"aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss"}) {
    t[op] = elementwise_loss();
    t.decompose(op, mean_by_sum(op, 2));
  }
  for (const char* op : {"aten::mse_loss_backward", "aten::smooth_l1_loss_backward", "aten::huber_loss_backward"}) {
    t[op] = elementwise_loss_backward();
    t.decompose(op, mean_by_sum_backward(op, 3));
  }
  for (const char* op : {"aten::nll_loss_forward", "aten::nll_loss2d_forward"}) {
    t[op] = nll_loss();
    t.decompose(op, [op](auto& stack) { return nll_mean(stack, op); });
  }
  t["aten::binary_cross_entropy"] = only_elementwise({kNone});
  t["aten::binary_cross_entropy_backward"] = only_elementwise({kNone, kSum});
  t["aten::nll_loss_backward"] = t["aten::nll_loss2d_backward"] = nll_loss_backward();
}

}  // namespace intarsia
