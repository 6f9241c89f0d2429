// Group norm, and instance norm, where every channel is a group. If channels or the dims behind them are sharded, the
// values stay where they are, and only sums of them are sent.

#include <ATen/ATen.h>

#include "intarsia/dispatch/run.h"
#include "intarsia/ops/along/layouts.h"
#include "intarsia/ops/norms/parts.h"
#include "intarsia/propagate/forms.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;

// Whether the sizes in the arguments match the tensors.
bool numbers_fit(const OpCall& call) {
  auto& input = call.inputs[0];
  auto n = call.int_arg("N", 0), c = call.int_arg("C", 0), inner = call.int_arg("HxW", 0);
  return input.dim() > 1 && input.sizes[0] == n && input.sizes[1] == c && input.numel() == n * c * inner;
}

// group_norm(input, weight, bias): samples are independent.
Rule group_norm_rule() {
  auto make = [](const OpCall&) { return Rows{{{S(0), R, R}, {S(0), S(0), S(0)}}}; };
  auto shapes = [](const OpCall& call) -> Shapes {
    std::vector<int64_t> statistics = {call.inputs[0].sizes[0], call.int_arg("group", 1)};
    return {sizes_of(call.inputs[0]), statistics, statistics};
  };
  auto check = [](const OpCall& call) {
    if (!numbers_fit(call)) ask_plain(call);
  };
  return rows("norm", make).with_size_args({"N"}).with_shapes(shapes).with_dtypes(norm_dtypes).checking(check);
}

// backward(grad, input, mean, rstd, weight): gradients of weight and bias are sums over samples.
Rule group_norm_backward_rule() {
  auto make = [](const OpCall&) { return Rows{{{S(0), S(0), S(0), S(0), R}, {S(0), P_sum, P_sum}}}; };
  auto shapes = [](const OpCall& call) -> Shapes {
    std::vector<int64_t> channels = {call.inputs[1].sizes[1]};
    return {sizes_of(call.inputs[1]), channels, channels};
  };
  return rows("norm", make).with_size_args({"N"}).with_shapes(shapes).with_dtypes(norm_dtypes);
}

// Means over groups of channels, and the reverse. If the channels are sharded between groups, nothing is gathered; else
// the sums of single channels are.
struct Groups {
  int64_t channels, groups, ndim;

  bool between_groups(const at::Tensor& sums) const {
    int64_t parts = 1;
    for (int64_t axis = 0; axis < mesh_of(sums).ndim(); ++axis) {
      auto& placement = placements_of(sums)[axis];
      if (cut_dim(placement) != 1) continue;
      if (!is_shard(placement)) return false;
      parts *= mesh_of(sums).size(axis);
    }
    return groups % parts == 0;
  }

  // [N, C, ...] -> [N, groups]
  at::Tensor mean(const at::Tensor& x) const {
    auto inner = dims_from(2, ndim);
    auto sums = settle(inner.empty() ? x : at::sum(x, inner, false));
    if (!between_groups(sums)) sums = whole_along(sums, 1);
    auto totals = at::sum(sums.reshape({sums.size(0), groups, channels / groups}), {2}, false);
    return at::div(totals, extent(x, dims_from(1, ndim)) / static_cast<double>(groups));
  }

  // [N, groups] -> [N, C, 1, ...]
  at::Tensor spread(const at::Tensor& values) const {
    std::vector<int64_t> shape(ndim, 1);
    shape[0] = values.size(0);
    shape[1] = channels;
    return settle(values).unsqueeze(2).expand({values.size(0), groups, channels / groups}).reshape(shape);
  }
};

void normalize_groups(Stack& stack, const Groups& groups) {
  auto input = stack[0].toTensor(), weight = optional_tensor(stack[1]), bias = optional_tensor(stack[2]);
  auto x = settle(input).to(sum_type(input.scalar_type()));
  auto mean = settle(groups.mean(x));
  auto centered = at::sub(x, groups.spread(mean));
  auto variance = settle(groups.mean(at::mul(centered, centered)));
  auto rstd = at::rsqrt(at::add(variance, stack[7].toDouble()));
  auto normed = at::mul(centered, groups.spread(rstd));
  auto out = scaled_and_moved(normed, along_channels(weight, x), along_channels(bias, x));
  auto statistics = weight_type(weight, input);
  stack = {out.to(input.scalar_type()), mean.to(statistics), rstd.to(statistics)};
}

// native_group_norm(input, weight, bias, N, C, HxW, group, eps)
Lowering group_norm_along(const CutCall& c) {
  auto& input = c.input(0);
  if (!c.cuts(0, dims_from(1, input.dim())) || input.numel() == 0 || !numbers_fit(c.call)) return {};
  Groups groups{input.sizes[1], c.call.int_arg("group", 1), input.dim()};
  return [groups](Stack& stack) { normalize_groups(stack, groups); };
}

void normalize_groups_backward(Stack& stack, const Groups& groups) {
  auto input = stack[1].toTensor(), weight = optional_tensor(stack[4]);
  auto mask = stack[9].toBoolList();
  auto type = sum_type(input.scalar_type());
  auto x = settle(input);
  auto grad = lie_like(stack[0].toTensor(), x).to(type);
  auto rstd = groups.spread(stack[3].toTensor().to(type));
  auto normed = at::mul(at::sub(x.to(type), groups.spread(stack[2].toTensor().to(type))), rstd);
  auto others = dims_from(2, x.dim());
  others.push_back(0);
  Stack results(3, at::Tensor());
  if (mask[0]) {
    auto g = scaled(grad, along_channels(weight, x));
    auto along = at::mul(normed, groups.spread(groups.mean(at::mul(g, normed))));
    auto level = groups.spread(groups.mean(g));
    results[0] = at::mul(at::sub(at::sub(g, level), along), rstd).to(input.scalar_type());
  }
  if (mask[1]) results[1] = at::sum(at::mul(grad, normed), others, false).to(weight_type(weight, input));
  if (mask[2]) results[2] = at::sum(grad, others, false).to(weight_type(weight, input));
  stack = std::move(results);
}

// native_group_norm_backward(grad, input, mean, rstd, weight, N, C, HxW, group, output_mask)
Lowering group_norm_backward_along(const CutCall& c) {
  auto& input = c.input(1);
  if (!c.cuts(1, dims_from(1, input.dim())) || input.numel() == 0) return {};
  Groups groups{input.sizes[1], c.call.int_arg("group", 1), input.dim()};
  return [groups](Stack& stack) { normalize_groups_backward(stack, groups); };
}

// Statistics per sample and channel: LibTorch flattens the two into one dim, which would redistribute an uneven batch.
at::Tensor instance_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                         const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
                         const std::optional<at::Tensor>& running_var, bool use_input_stats, double momentum,
                         double eps, bool) {
  bool tracked = running_mean && running_mean->defined(), both = running_var && running_var->defined();
  TORCH_CHECK(use_input_stats || (tracked && both),
              "Expected running_mean and running_var to be defined when use_input_stats is false");
  if (!use_input_stats)
    return at::batch_norm(input, weight, bias, running_mean, running_var, false, momentum, eps, false);
  TORCH_CHECK(input.dim() > 2, "instance_norm(): expected samples, channels and at least one more dim, got ",
              input.sizes());
  if (tracked || both) {
    at::NoGradGuard no_grad;
    auto [var, mean] = at::var_mean(input, dims_from(2, input.dim()), /*correction=*/1, false);
    if (tracked) running_mean->mul_(1 - momentum).add_(mean.mean(0), momentum);
    if (both) running_var->mul_(1 - momentum).add_(var.mean(0), momentum);
  }
  return at::group_norm(input, input.size(1), weight, bias, eps, false);
}

// Under a guide, results have the layouts that LibTorch's own steps would give.
at::Tensor instance_norm_by_steps(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                                  const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
                                  const std::optional<at::Tensor>& running_var, bool use_input_stats, double momentum,
                                  double eps, bool cudnn) {
  using InstanceNorm = decltype(instance_norm_by_steps);
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::instance_norm", "").typed<InstanceNorm>();
  return op.redispatch(kComposite, input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps,
                       cudnn);
}

}  // namespace

void add_group_norm(RuleTable& t) {
  t.add("aten::native_group_norm", group_norm_rule());
  t.lower("aten::native_group_norm", group_norm_along);
  t.add("aten::native_group_norm_backward", group_norm_backward_rule());
  t.lower("aten::native_group_norm_backward", group_norm_backward_along);
  t.composite("aten::instance_norm", &instance_norm, &instance_norm_by_steps);
  t.hands_on({"aten::group_norm"});
}

}  // namespace intarsia
