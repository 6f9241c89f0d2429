// Classification losses: nll_loss and cross_entropy. Positions may be sharded, and so may classes.

#include <ATen/ATen.h>

#include "intarsia/dispatch/run.h"
#include "intarsia/ops/along/layouts.h"
#include "intarsia/ops/losses/mean.h"
#include "intarsia/propagate/forms.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// A classification loss: input [N, C, d1, ...] or [C], target without C. If positions are sharded, the loss is a
// pending sum, and a weighted mean is computed from sums. If classes are sharded, each rank handles the targets that it
// holds.
int64_t class_dim(const TensorForm& input) { return input.dim() == 1 ? 0 : 1; }

constexpr int64_t kElsewhere = -100;  // no class of a shard has this number

// Replaces the targets by those of this rank's classes, and the ignored index by one that no class of a shard has.
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

// Checks that every position has a target, and every class a weight.
void check_nll(const OpCall& call) {
  auto &input = call.inputs[0], &target = call.inputs[1], &weight = call.inputs[2];
  auto positions = sizes_of(input);
  if (!positions.empty()) positions.erase(positions.begin() + class_dim(input));
  bool fits = input.dim() > 0 && (input.dim() == 1 || at::IntArrayRef(target.sizes) == at::IntArrayRef(positions)) &&
              (!weight.defined || weight.numel() == input.sizes[class_dim(input)]);
  if (!fits) ask_plain(call);
}

Rule nll_loss() {
  Rule rule = rows("loss", [](const OpCall& call) {
    Rows rows;
    auto ndim = call.inputs[0].dim();
    auto reduction = reduction_of(call);
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
  return std::move(rule)
      .with_shapes([](const OpCall& call) -> std::vector<std::vector<int64_t>> {
        return {reduction_of(call) == kNone ? sizes_of(call.inputs[1]) : std::vector<int64_t>(), {}};
      })
      .checking(check_nll)
      .with_local([](LocalCall& local) {
        own_targets(local, 0, 1, 4);
        local.call_plain();
      })
      .refusing({1});
}

Rule nll_loss_backward() {
  Rule rule = rows("loss", [](const OpCall& call) {
    Rows rows;
    auto ndim = call.inputs[1].dim();
    auto reduction = reduction_of(call);
    bool each = reduction == kNone;
    // Only a mean divides by the total of the weights: otherwise it may stay pending.
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
  return std::move(rule)
      .with_shapes([](const OpCall& call) -> std::vector<std::vector<int64_t>> { return {sizes_of(call.inputs[1])}; })
      .with_local([](LocalCall& local) {
        own_targets(local, 1, 2, 5);
        local.call_plain();
      });
}

// The mean of a classification loss is its sum divided by the weights of all positions that are not ignored. Their
// total is settled once, here: the gradient also divides by it.
Planner nll_mean(const char* op) {
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op, "");
  return [handle](const CutCall& c) -> Lowering {
    if (reduction_of(c.call) != kMean) return {};
    return [handle](Stack& stack) {
      stack[3] = kSum;
      handle.callBoxed(stack);
      stack[1] = settle(stack[1].toTensor());
      stack[0] = at::div(stack[0].toTensor(), stack[1].toTensor());
    };
  };
}

// The mean of a smoothed loss with weights divides by the weights of the targets, which LibTorch collects with
// masked_select; here they are looked up in the layout of the targets. Everything else is LibTorch's.
at::Tensor cross_entropy(const at::Tensor& self, const at::Tensor& target, const std::optional<at::Tensor>& weight,
                         int64_t reduction, int64_t ignored, double smoothing) {
  using CrossEntropy =
      at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t, c10::SymInt, double);
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::cross_entropy_loss", "").typed<CrossEntropy>();
  bool smoothed_mean = smoothing > 0 && smoothing <= 1 && reduction == kMean && weight && weight->defined() &&
                       self.dim() > 1 && target.sizes() != self.sizes();
  if (!smoothed_mean) return op.redispatch(kComposite, self, target, weight, reduction, ignored, smoothing);
  auto classes = self.size(1);
  auto scores = at::log_softmax(self, 1);
  auto hard = at::nll_loss_nd(scores, target, weight, reduction, ignored);
  std::vector<int64_t> shape(self.dim(), 1);
  shape[1] = classes;
  auto skipped = at::eq(target, ignored);
  auto soft = at::neg(at::sum(at::mul(scores, weight->reshape(shape)), 1)).masked_fill(skipped, 0);
  auto of_target = at::embedding(weight->detach().unsqueeze(1), target.masked_fill(skipped, 0)).squeeze(-1);
  auto mean = at::div(at::sum(soft), at::sum(of_target.masked_fill(skipped, 0)));
  return at::add(at::mul(hard, 1 - smoothing), at::mul(mean, smoothing / static_cast<double>(classes)));
}

}  // namespace

void add_nll_losses(RuleTable& t) {
  for (const char* op : {"aten::nll_loss_forward", "aten::nll_loss2d_forward"}) {
    t.add(op, nll_loss());
    t.lower(op, nll_mean(op));
  }
  t.add({"aten::nll_loss_backward", "aten::nll_loss2d_backward"}, nll_loss_backward());
  t.composite("aten::cross_entropy_loss", cross_entropy);
  t.hands_on({"aten::nll_loss", "aten::nll_loss_nd"});
}

}  // namespace intarsia
