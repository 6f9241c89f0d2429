#include "intarsia/ops/batch_norm.h"

#include <ATen/ATen.h>

#include "intarsia/ops/layouts.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/meta.h"

namespace intarsia {
namespace {

// The strides of the plain op's results: contiguous, or with the channels last as in the input.
std::vector<int64_t> result_strides(const at::Tensor& x) {
  auto format = x.suggest_memory_format();
  auto form = at::empty(x.sizes(), at::TensorOptions(at::kMeta).dtype(x.scalar_type()).memory_format(format));
  return form.strides().vec();
}

using Stack = std::vector<c10::IValue>;

std::vector<int64_t> all_but_channels(const at::Tensor& x) {
  std::vector<int64_t> dims = {0};
  for (int64_t d = 2; d < x.dim(); ++d) dims.push_back(d);
  return dims;
}

at::Tensor along_channels(const at::Tensor& values, const at::Tensor& x) {
  std::vector<int64_t> shape(x.dim(), 1);
  shape[1] = x.size(1);
  return values.defined() ? values.reshape(shape) : values;
}

void follow(const at::Tensor& running, const at::Tensor& now, double momentum) {
  if (running.defined()) running.mul_(1 - momentum).add_(now.to(running.scalar_type()), momentum);
}

at::ScalarType type_of(const at::Tensor& weight, const at::Tensor& otherwise) {
  return weight.defined() ? weight.scalar_type() : otherwise.scalar_type();
}

// --- written in ops on distributed tensors: any types and layouts

Stack by_ops(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& running_mean,
             const at::Tensor& running_var, bool training, double momentum, double eps) {
  auto x = settle(input).to(sum_type(input.scalar_type()));
  auto dims = all_but_channels(x);
  auto count = extent(x, dims);
  at::Tensor mean, rstd, centered;
  if (training) {
    mean = settle(at::div(at::sum(x, dims, false), count));
    centered = at::sub(x, along_channels(mean, x));
    auto variance = settle(at::div(at::sum(at::mul(centered, centered), dims, false), count));
    rstd = at::rsqrt(at::add(variance, eps));
    follow(running_mean, mean, momentum);
    follow(running_var, at::mul(variance, count / (count - 1)), momentum);
  } else {
    mean = running_mean.to(x.scalar_type());
    centered = at::sub(x, along_channels(mean, x));
    rstd = at::rsqrt(at::add(running_var.to(x.scalar_type()), eps));
  }
  auto normed = at::mul(centered, along_channels(rstd, x));
  auto out = normed;
  if (weight.defined()) out = at::mul(out, along_channels(weight.to(x.scalar_type()), x));
  if (bias.defined()) out = at::add(out, along_channels(bias.to(x.scalar_type()), x));
  out = out.to(input.scalar_type());
  if (!training) return {out, x.new_empty({0}), x.new_empty({0})};
  auto statistics = type_of(weight, input);
  return {out, mean.to(statistics), rstd.to(statistics)};
}

Stack gradients_by_ops(const Stack& stack) {
  auto input = stack[1].toTensor(), weight = optional_tensor(stack[2]);
  bool training = stack[7].toBool();
  auto mask = stack[9].toBoolList();
  auto type = sum_type(input.scalar_type());
  auto x = settle(input);
  auto grad = lie_like(stack[0].toTensor(), x).to(type);
  auto dims = all_but_channels(x);
  auto mean = optional_tensor(stack[training ? 5 : 3]).to(type);
  auto rstd = training ? optional_tensor(stack[6]).to(type)
                       : at::rsqrt(at::add(optional_tensor(stack[4]).to(type), stack[8].toDouble()));
  auto normed = at::mul(at::sub(x.to(type), along_channels(mean, x)), along_channels(rstd, x));
  auto along = at::sum(at::mul(grad, normed), dims, false), level = at::sum(grad, dims, false);
  Stack results(3, at::Tensor());
  if (mask[0]) {
    auto g = grad;
    if (training) {
      auto count = extent(x, dims);
      g = at::sub(g, along_channels(at::div(settle(level), count), x));
      g = at::sub(g, at::mul(normed, along_channels(at::div(settle(along), count), x)));
    }
    auto factor = weight.defined() ? at::mul(rstd, weight.to(type)) : rstd;
    results[0] = at::mul(g, along_channels(factor, x)).to(input.scalar_type());
  }
  if (mask[1]) results[1] = along.to(type_of(weight, input));
  if (mask[2]) results[2] = level.to(type_of(weight, input));
  return results;
}

// --- on the shards, with LibTorch's own loops, which make no tensor as large as the input but the result

// Whether those loops take the tensors: of one type, in plain shards.
bool suits_loops(const at::Tensor& x, std::initializer_list<at::Tensor> others) {
  auto type = x.scalar_type();
  if (!is_dtensor(x) || (type != at::kFloat && type != at::kDouble) || x.numel() == 0) return false;
  for (auto& placement : placements_of(x)) {
    if (cut_dim(placement) == 1 && !is_shard(placement)) return false;
  }
  for (auto& other : others) {
    if (other.defined() && (!is_dtensor(other) || other.scalar_type() != type || mesh_of(other) != mesh_of(x))) return false;
  }
  return true;
}

// How a value per channel lies beside `x`: cut as the channels are. `sums`: made of the shards of all other cuts.
Placements beside(const at::Tensor& x, bool sums) {
  Placements placements;
  for (auto& placement : placements_of(x)) {
    auto dim = cut_dim(placement);
    placements.push_back(dim == 1 ? Placement(Shard(0)) : sums && dim >= 0 ? Placement(Partial()) : Placement(Replicate()));
  }
  return placements;
}

Shards shards_beside(const at::Tensor& values, const at::Tensor& x) {
  at::NoGradGuard below_autograd;
  return values.defined() ? shards_of(redistribute(values, beside(x, false))) : Shards(mesh_of(x).slots().size());
}

at::Tensor per_channel(Shards shards, const at::Tensor& x) {
  return wrap(std::move(shards), Layout::get(mesh_of(x), beside(x, true)), {x.size(1)}, {1}, x.dtype());
}

struct Statistics {
  at::Tensor mean, variance;
};

// Of the whole from those of the shards: the square distance from another mean is that from one's own plus theirs.
Statistics statistics(const at::Tensor& x) {
  auto count = extent(x, all_but_channels(x));
  Shards means, variances, sums, squares;
  for (auto& shard : shards_of(x)) {
    auto empty = shard.numel() == 0;
    auto zeros = [&] { return at::zeros({shard.size(1)}, shard.options()); };
    auto [mean, variance] = empty ? std::make_tuple(zeros(), zeros()) : at::batch_norm_update_stats(shard, {}, {}, 0);
    means.push_back(mean), variances.push_back(variance);
    sums.push_back(at::mul(mean, extent(shard, all_but_channels(shard))));
  }
  auto mean = at::div(settle(per_channel(std::move(sums), x)), count);
  for (size_t slot = 0; slot < means.size(); ++slot) {
    auto& shard = shards_of(x)[slot];
    auto apart = means[slot].sub_(shards_of(mean)[slot]);
    squares.push_back(variances[slot].addcmul_(apart, apart).mul_(extent(shard, all_but_channels(shard))));
  }
  return {mean, at::div(settle(per_channel(std::move(squares), x)), count)};
}

Stack by_loops(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& running_mean,
               const at::Tensor& running_var, bool training, double momentum, double eps) {
  auto [mean, variance] = training ? statistics(x) : Statistics{running_mean, running_var};
  auto means = shards_beside(mean, x), variances = shards_beside(variance, x);
  auto weights = shards_beside(weight, x), biases = shards_beside(bias, x);
  Shards results;
  for (size_t slot = 0; slot < means.size(); ++slot) {
    auto& shard = shards_of(x)[slot];
    results.push_back(shard.numel() ? std::get<0>(at::native_batch_norm(shard, weights[slot], biases[slot], means[slot],
                                                                        variances[slot], false, 0, eps))
                                    : at::empty_like(shard));
  }
  auto out = wrap(std::move(results), &layout_of(x), x.sizes(), result_strides(x), x.dtype());
  if (!training) return {out, x.new_empty({0}), x.new_empty({0})};
  auto count = extent(x, all_but_channels(x));
  follow(running_mean, mean, momentum);
  follow(running_var, at::mul(variance, count / (count - 1)), momentum);
  return {out, mean, at::rsqrt(at::add(variance, eps))};
}

// The input's gradient on one rank: factor * (grad - level - (x - mean) * slope), where what stands per channel is given
// with the factor in it. Without a level, in evaluation, only the factor counts.
at::Tensor input_gradient(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& factor,
                          const at::Tensor& level, const at::Tensor& slope) {
  if (!level.defined()) return at::mul(grad, along_channels(factor, x));
  auto result = at::sub(x, along_channels(mean, x));
  return result.mul_(along_channels(slope, x)).neg_().addcmul_(grad, along_channels(factor, x)).sub_(along_channels(level, x));
}

Stack gradients_by_loops(const at::Tensor& given, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& mean,
                         const at::Tensor& rstd, bool training, std::array<bool, 3> mask) {
  auto grad = lie_like(given, x);
  auto means = shards_beside(mean, x), deviations = shards_beside(rstd, x), weights = shards_beside(weight, x);
  Shards alongs, levels;
  for (size_t slot = 0; slot < means.size(); ++slot) {
    auto& shard = shards_of(x)[slot];
    auto zeros = [&] { return at::zeros({shard.size(1)}, shard.options()); };
    at::Tensor none, along, level;
    if (shard.numel()) {
      std::tie(none, along, level) = at::native_batch_norm_backward(shards_of(grad)[slot], shard, weights[slot], {}, {}, means[slot],
                                                                    deviations[slot], true, 0, {false, true, true});
    }
    alongs.push_back(along.defined() ? along : zeros()), levels.push_back(level.defined() ? level : zeros());
  }
  auto along = per_channel(std::move(alongs), x), level = per_channel(std::move(levels), x);
  Stack results(3, at::Tensor());
  if (mask[1]) results[1] = along;
  if (mask[2]) results[2] = level;
  if (!mask[0]) return results;
  auto count = extent(x, all_but_channels(x));
  auto factor = weight.defined() ? at::mul(rstd, weight) : rstd;
  auto factors = shards_beside(factor, x);
  Shards shifts(means.size()), slopes(means.size()), inputs;
  if (training) {
    shifts = shards_beside(at::mul(at::div(settle(level), count), factor), x);
    slopes = shards_beside(at::mul(at::div(settle(along), count), at::mul(rstd, factor)), x);
  }
  for (size_t slot = 0; slot < means.size(); ++slot) {
    inputs.push_back(input_gradient(shards_of(grad)[slot], shards_of(x)[slot], means[slot], factors[slot], shifts[slot], slopes[slot]));
  }
  results[0] = wrap(std::move(inputs), &layout_of(x), x.sizes(), result_strides(x), x.dtype());
  return results;
}

}  // namespace

Stack batch_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& running_mean,
                 const at::Tensor& running_var, bool training, double momentum, double eps) {
  auto x = settle(input);
  auto way = suits_loops(x, {weight, bias, running_mean, running_var}) ? by_loops : by_ops;
  return way(x, weight, bias, running_mean, running_var, training, momentum, eps);
}

bool batch_norm_backward(Stack& stack) {
  auto x = settle(stack[1].toTensor()), grad = stack[0].toTensor(), weight = optional_tensor(stack[2]);
  bool training = stack[7].toBool();
  auto wanted = stack[9].toBoolList();
  auto mean = optional_tensor(stack[training ? 5 : 3]), spread = optional_tensor(stack[training ? 6 : 4]);
  if (!suits_loops(x, {grad, weight, mean, spread})) {
    stack = gradients_by_ops(stack);
    return true;
  }
  auto rstd = training ? spread : at::rsqrt(at::add(spread, stack[8].toDouble()));
  stack = gradients_by_loops(grad, x, weight, mean, rstd, training, {wanted[0], wanted[1], wanted[2]});
  return true;
}

}  // namespace intarsia
