// Normalizations whose statistics run over cut dims: the values stay where they are, only sums of them travel.

#include <ATen/ATen.h>

#include "intarsia/ops/batch_norm.h"
#include "intarsia/ops/layouts.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

using Stack = std::vector<c10::IValue>;

std::vector<int64_t> dims_from(int64_t first, int64_t ndim) {
  std::vector<int64_t> dims;
  for (auto d = first; d < ndim; ++d) dims.push_back(d);
  return dims;
}

// The sum over the dims, which may be none.
at::Tensor sum_over(const at::Tensor& x, const std::vector<int64_t>& dims, bool keep) {
  return dims.empty() ? x : at::sum(x, dims, keep);
}

at::Tensor scaled(const at::Tensor& x, const at::Tensor& weight) {
  return weight.defined() ? at::mul(x, weight.to(x.scalar_type())) : x;
}

at::Tensor scaled_and_moved(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  auto y = scaled(x, weight);
  return bias.defined() ? at::add(y, bias.to(y.scalar_type())) : y;
}

// Statistics of half types are float where the weight is.
at::ScalarType statistics_type(const at::Tensor& x, const at::Tensor& weight) {
  return weight.defined() ? weight.scalar_type() : x.scalar_type();
}

at::ScalarType type_of(const at::Tensor& weight, const at::Tensor& otherwise) {
  return weight.defined() ? weight.scalar_type() : otherwise.scalar_type();
}

// --- layer norm

// native_layer_norm(input, normalized_shape, weight, bias, eps)
bool layer_norm(Stack& stack) {
  auto input = stack[0].toTensor(), weight = optional_tensor(stack[2]), bias = optional_tensor(stack[3]);
  auto shape = stack[1].toIntVector();
  auto first = input.dim() - static_cast<int64_t>(shape.size());
  if (first < 0 || input.sizes().slice(first) != at::IntArrayRef(shape)) return false;  // the plain op's error
  auto dims = dims_from(first, input.dim());
  if (!is_cut(input, dims) || input.numel() == 0) return false;
  auto x = settle(input).to(sum_type(input.scalar_type())).contiguous();  // so that the result is, as the plain op's
  auto count = extent(x, dims);
  auto mean = settle(at::div(at::sum(x, dims, true), count));
  auto centered = at::sub(x, mean);
  auto variance = at::div(at::sum(at::mul(centered, centered), dims, true), count);
  auto rstd = at::rsqrt(at::add(settle(variance), stack[4].toDouble()));
  auto out = scaled_and_moved(at::mul(centered, rstd), weight, bias);
  auto statistics = statistics_type(input, weight);
  stack = {out.to(input.scalar_type()), mean.to(statistics), rstd.to(statistics)};
  return true;
}

// native_layer_norm_backward(grad, input, normalized_shape, mean, rstd, weight, bias, output_mask)
bool layer_norm_backward(Stack& stack) {
  auto input = stack[1].toTensor(), weight = optional_tensor(stack[5]);
  auto first = input.dim() - static_cast<int64_t>(stack[2].toIntVector().size());
  auto dims = dims_from(first, input.dim()), leading = dims_from(0, first);
  if (!is_cut(input, dims) || input.numel() == 0) return false;
  auto mask = stack[7].toBoolList();
  auto type = sum_type(input.scalar_type());
  auto x = settle(input);
  auto grad = lie_like(stack[0].toTensor(), x).to(type);
  auto rstd = stack[4].toTensor().to(type);
  auto normed = at::mul(at::sub(x.to(type), stack[3].toTensor().to(type)), rstd);
  Stack results(3, at::Tensor());
  if (mask[0]) {
    auto count = extent(x, dims);
    auto g = scaled(grad, weight);
    auto along = at::mul(normed, at::div(at::sum(at::mul(g, normed), dims, true), count));
    auto level = at::div(at::sum(g, dims, true), count);
    results[0] = at::mul(at::sub(at::sub(g, level), along), rstd).to(input.scalar_type());
  }
  if (mask[1]) results[1] = sum_over(at::mul(grad, normed), leading, false).to(type_of(weight, input));
  if (mask[2]) results[2] = sum_over(grad, leading, false).to(type_of(weight, input));
  stack = std::move(results);
  return true;
}

// --- group norm

// Sums of groups of channels, and back. Where the cuts of the channels fall between groups nothing is gathered; else
// the sums of single channels are.
struct Groups {
  int64_t channels, groups, ndim;

  std::vector<int64_t> inner() const { return dims_from(2, ndim); }

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
  at::Tensor sum(const at::Tensor& x) const {
    auto sums = settle(sum_over(x, inner(), false));
    if (!between_groups(sums)) sums = whole_along(sums, 1);
    return at::sum(sums.reshape({sums.size(0), groups, channels / groups}), {2}, false);
  }

  // [N, groups] -> [N, C, 1, ...]
  at::Tensor spread(const at::Tensor& values) const {
    std::vector<int64_t> shape(ndim, 1);
    shape[0] = values.size(0);
    shape[1] = channels;
    return settle(values).unsqueeze(2).expand({values.size(0), groups, channels / groups}).reshape(shape);
  }

  // [C] -> [1, C, 1, ...]
  at::Tensor per_channel(const at::Tensor& weight) const {
    std::vector<int64_t> shape(ndim, 1);
    shape[1] = channels;
    return weight.defined() ? weight.reshape(shape) : weight;
  }
};

// native_group_norm(input, weight, bias, N, C, HxW, group, eps)
bool group_norm(Stack& stack) {
  auto input = stack[0].toTensor(), weight = optional_tensor(stack[1]), bias = optional_tensor(stack[2]);
  if (!is_cut(input, dims_from(1, input.dim())) || input.numel() == 0) return false;
  Groups channels{input.size(1), stack[6].toInt(), input.dim()};
  auto x = settle(input).to(sum_type(input.scalar_type()));
  auto count = extent(x, dims_from(1, x.dim())) / static_cast<double>(channels.groups);
  auto mean = settle(at::div(channels.sum(x), count));
  auto centered = at::sub(x, channels.spread(mean));
  auto variance = at::div(channels.sum(at::mul(centered, centered)), count);
  auto rstd = at::rsqrt(at::add(settle(variance), stack[7].toDouble()));
  auto normed = at::mul(centered, channels.spread(rstd));
  auto out = scaled_and_moved(normed, channels.per_channel(weight), channels.per_channel(bias));
  auto statistics = statistics_type(input, weight);
  stack = {out.to(input.scalar_type()), mean.to(statistics), rstd.to(statistics)};
  return true;
}

// native_group_norm_backward(grad, input, mean, rstd, weight, N, C, HxW, group, output_mask)
bool group_norm_backward(Stack& stack) {
  auto input = stack[1].toTensor(), weight = optional_tensor(stack[4]);
  if (!is_cut(input, dims_from(1, input.dim())) || input.numel() == 0) return false;
  Groups channels{input.size(1), stack[8].toInt(), input.dim()};
  auto mask = stack[9].toBoolList();
  auto type = sum_type(input.scalar_type());
  auto x = settle(input);
  auto grad = lie_like(stack[0].toTensor(), x).to(type);
  auto rstd = channels.spread(stack[3].toTensor().to(type));
  auto normed = at::mul(at::sub(x.to(type), channels.spread(stack[2].toTensor().to(type))), rstd);
  auto others = dims_from(2, x.dim());
  others.push_back(0);
  Stack results(3, at::Tensor());
  if (mask[0]) {
    auto count = extent(x, dims_from(1, x.dim())) / static_cast<double>(channels.groups);
    auto g = scaled(grad, channels.per_channel(weight));
    auto along = at::mul(normed, channels.spread(at::div(channels.sum(at::mul(g, normed)), count)));
    auto level = channels.spread(at::div(channels.sum(g), count));
    results[0] = at::mul(at::sub(at::sub(g, level), along), rstd).to(input.scalar_type());
  }
  if (mask[1]) results[1] = at::sum(at::mul(grad, normed), others, false).to(type_of(weight, input));
  if (mask[2]) results[2] = at::sum(grad, others, false).to(type_of(weight, input));
  stack = std::move(results);
  return true;
}

// --- batch norm, in its forms

bool batch_norm_with_running(Stack& stack) {
  stack = batch_norm(stack[0].toTensor(), optional_tensor(stack[1]), optional_tensor(stack[2]), optional_tensor(stack[3]),
                     optional_tensor(stack[4]), stack[5].toBool(), stack[6].toDouble(), stack[7].toDouble());
  return true;
}

bool batch_norm_without_running(Stack& stack) {
  stack = batch_norm(stack[0].toTensor(), optional_tensor(stack[1]), optional_tensor(stack[2]), {}, {}, true,
                     stack[4].toDouble(), stack[5].toDouble());
  return true;
}

// The newer op, with a reserve that only other devices use.
bool batch_norm_with_update(Stack& stack) {
  auto input = stack[0].toTensor();
  stack = batch_norm(input, optional_tensor(stack[1]), optional_tensor(stack[2]), stack[3].toTensor(), stack[4].toTensor(),
                     true, stack[5].toDouble(), stack[6].toDouble());
  stack.emplace_back(at::empty({0}, at::kByte));
  return true;
}

bool batch_norm_no_update(Stack& stack) {
  auto running_mean = optional_tensor(stack[3]), running_var = optional_tensor(stack[4]);
  bool training = !running_mean.defined();
  stack = batch_norm(stack[0].toTensor(), optional_tensor(stack[1]), optional_tensor(stack[2]), running_mean, running_var,
                     training, stack[5].toDouble(), stack[6].toDouble());
  stack.emplace_back(at::empty({0}, at::kByte));
  return true;
}

bool batch_norm_no_training(Stack& stack) {
  stack = batch_norm(stack[0].toTensor(), optional_tensor(stack[1]), optional_tensor(stack[2]), stack[3].toTensor(),
                     stack[4].toTensor(), false, stack[5].toDouble(), stack[6].toDouble());
  return true;
}

}  // namespace

void add_norm_ops(RuleTable& t) {
  t.decompose("aten::native_layer_norm", layer_norm);
  t.decompose("aten::native_layer_norm_backward", layer_norm_backward);
  t.decompose("aten::native_group_norm", group_norm);
  t.decompose("aten::native_group_norm_backward", group_norm_backward);
  t.decompose("aten::native_batch_norm", batch_norm_with_running);
  t.decompose("aten::_native_batch_norm_legit", batch_norm_with_running);
  t.decompose("aten::_native_batch_norm_legit.no_stats", batch_norm_without_running);
  t.decompose("aten::native_batch_norm_backward", batch_norm_backward);
  t.decompose("aten::_batch_norm_with_update", batch_norm_with_update);
  t.decompose("aten::_batch_norm_no_update", batch_norm_no_update);
  t.decompose("aten::_native_batch_norm_legit_no_training", batch_norm_no_training);
  t.decompose("aten::batch_norm_backward", batch_norm_backward);
}

}  // namespace intarsia
