// Batch norm, in all its forms: the statistics are those of the whole batch, however it is sharded.

#include <array>
#include <tuple>

#include <ATen/ATen.h>

#include "intarsia/ops/along/layouts.h"
#include "intarsia/ops/norms/parts.h"
#include "intarsia/ops/reductions/statistics.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

// The arguments that all forms of the op have.
struct BatchNorm {
  at::Tensor input, weight, bias, running_mean, running_var;
  bool training;
  double momentum, eps;
};

// The arguments of backward(grad, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, mask).
// `spread` is the inverse deviation in training, and else the running variance.
struct BatchNormBackward {
  at::Tensor grad, input, weight, mean, spread;
  bool training;
  double eps;
  std::array<bool, 3> mask;

  at::Tensor inverse_deviation() const { return training ? spread : at::rsqrt(at::add(spread, eps)); }
};

// The strides of the plain op's results: contiguous, or with the channels last as in the input.
std::vector<int64_t> result_strides(const at::Tensor& x) {
  auto format = x.suggest_memory_format();
  auto form = at::empty(x.sizes(), at::TensorOptions(at::kMeta).dtype(x.scalar_type()).memory_format(format));
  return form.strides().vec();
}

std::vector<int64_t> all_but_channels(const at::Tensor& x) {
  std::vector<int64_t> dims = {0};
  for (int64_t d = 2; d < x.dim(); ++d) dims.push_back(d);
  return dims;
}

void follow(const at::Tensor& running, const at::Tensor& now, double momentum) {
  if (running.defined()) running.mul_(1 - momentum).add_(now.to(running.scalar_type()), momentum);
}

// Updates the running statistics from those of the batch; the running variance is that of a sample.
void follow(const BatchNorm& norm, const at::Tensor& mean, const at::Tensor& variance) {
  auto count = extent(norm.input, all_but_channels(norm.input));
  follow(norm.running_mean, mean, norm.momentum);
  follow(norm.running_var, at::mul(variance, count / (count - 1)), norm.momentum);
}

// --- written in ops on distributed tensors: any types and layouts

Stack by_ops(const BatchNorm& norm) {
  auto x = norm.input.to(sum_type(norm.input.scalar_type()));
  auto dims = all_but_channels(x);
  at::Tensor mean, rstd, centered;
  if (norm.training) {
    mean = settle(mean_over(x, dims, false));
    centered = at::sub(x, along_channels(mean, x));
    auto variance = settle(mean_over(at::mul(centered, centered), dims, false));
    rstd = at::rsqrt(at::add(variance, norm.eps));
    follow(norm, mean, variance);
  } else {
    mean = norm.running_mean.to(x.scalar_type());
    centered = at::sub(x, along_channels(mean, x));
    rstd = at::rsqrt(at::add(norm.running_var.to(x.scalar_type()), norm.eps));
  }
  auto normed = at::mul(centered, along_channels(rstd, x));
  auto out = scaled_and_moved(normed, along_channels(norm.weight, x), along_channels(norm.bias, x));
  out = out.to(norm.input.scalar_type()).contiguous(norm.input.suggest_memory_format());
  if (!norm.training) return {out, x.new_empty({0}), x.new_empty({0})};
  auto statistics = weight_type(norm.weight, norm.input);
  return {out, mean.to(statistics), rstd.to(statistics)};
}

Stack gradients_by_ops(BatchNormBackward norm) {
  auto type = sum_type(norm.input.scalar_type());
  auto& x = norm.input;
  norm.mean = norm.mean.to(type), norm.spread = norm.spread.to(type);
  auto grad = lie_like(norm.grad, x).to(type);
  auto dims = all_but_channels(x);
  auto rstd = norm.inverse_deviation();
  auto normed = at::mul(at::sub(x.to(type), along_channels(norm.mean, x)), along_channels(rstd, x));
  auto along = at::sum(at::mul(grad, normed), dims, false), level = at::sum(grad, dims, false);
  Stack results(3, at::Tensor());
  if (norm.mask[0]) {
    auto g = grad;
    if (norm.training) {
      auto count = extent(x, dims);
      g = at::sub(g, along_channels(at::div(settle(level), count), x));
      g = at::sub(g, at::mul(normed, along_channels(at::div(settle(along), count), x)));
    }
    auto result = at::mul(g, along_channels(scaled(rstd, norm.weight), x)).to(x.scalar_type());
    results[0] = result.contiguous(x.suggest_memory_format());
  }
  if (norm.mask[1]) results[1] = along.to(weight_type(norm.weight, x));
  if (norm.mask[2]) results[2] = level.to(weight_type(norm.weight, x));
  return results;
}

// --- on the shards, with LibTorch's own loops, which allocate nothing as large as the input except the result

// Whether those loops accept the tensors: of one dtype, in plain shards.
bool suits_loops(const at::Tensor& x, std::initializer_list<at::Tensor> others) {
  auto type = x.scalar_type();
  if (!is_dtensor(x) || (type != at::kFloat && type != at::kDouble) || x.numel() == 0) return false;
  for (auto& placement : placements_of(x)) {
    if (cut_dim(placement) == 1 && !is_shard(placement)) return false;
  }
  for (auto& other : others) {
    if (other.defined() && (!is_dtensor(other) || other.scalar_type() != type || mesh_of(other) != mesh_of(x)))
      return false;
  }
  return true;
}

// The layout of a value per channel beside `x`: sharded as the channels are. `sums`: summed over the shards of all
// other dims.
Placements beside(const at::Tensor& x, bool sums) {
  Placements placements;
  for (auto& placement : placements_of(x)) {
    auto dim = cut_dim(placement);
    placements.push_back(dim == 1           ? Placement(Shard(0))
                         : sums && dim >= 0 ? Placement(Partial())
                                            : Placement(Replicate()));
  }
  return placements;
}

Shards shards_beside(const at::Tensor& values, const at::Tensor& x) {
  at::NoGradGuard below_autograd;
  return values.defined() ? body_of(redistribute(values, beside(x, false))).shards()
                          : Shards(mesh_of(x).slots().size());
}

at::Tensor per_channel(Shards shards, const at::Tensor& x) {
  return wrap(std::move(shards), Layout::get(mesh_of(x), beside(x, true)), {x.size(1)}, {1}, x.dtype());
}

at::Tensor zero_per_channel(const at::Tensor& shard) { return at::zeros({shard.size(1)}, shard.options()); }

struct Statistics {
  at::Tensor mean, variance;
};

// Statistics of the whole from those of the shards: the squared deviation from another mean is that from a shard's own
// mean plus that of the means.
Statistics statistics(const at::Tensor& x) {
  auto count = extent(x, all_but_channels(x));
  Shards means, variances, sums, squares;
  for (auto& shard : body_of(x).shards()) {
    auto [mean, variance] = shard.numel() ? at::batch_norm_update_stats(shard, {}, {}, 0)
                                          : std::make_tuple(zero_per_channel(shard), zero_per_channel(shard));
    means.push_back(mean), variances.push_back(variance);
    sums.push_back(at::mul(mean, extent(shard, all_but_channels(shard))));
  }
  auto mean = at::div(settle(per_channel(std::move(sums), x)), count);
  for (size_t slot = 0; slot < means.size(); ++slot) {
    auto& shard = body_of(x).shards()[slot];
    auto apart = means[slot].sub_(body_of(mean).shards()[slot]);
    squares.push_back(variances[slot].addcmul_(apart, apart).mul_(extent(shard, all_but_channels(shard))));
  }
  return {mean, at::div(settle(per_channel(std::move(squares), x)), count)};
}

Stack by_loops(const BatchNorm& norm) {
  auto& x = norm.input;
  auto [mean, variance] = norm.training ? statistics(x) : Statistics{norm.running_mean, norm.running_var};
  auto means = shards_beside(mean, x), variances = shards_beside(variance, x);
  auto weights = shards_beside(norm.weight, x), biases = shards_beside(norm.bias, x);
  Shards results;
  for (size_t slot = 0; slot < means.size(); ++slot) {
    auto& shard = body_of(x).shards()[slot];
    results.push_back(shard.numel() ? std::get<0>(at::native_batch_norm(shard, weights[slot], biases[slot], means[slot],
                                                                        variances[slot], false, 0, norm.eps))
                                    : at::empty_like(shard));
  }
  auto out = wrap(std::move(results), &layout_of(x), x.sizes(), result_strides(x), x.dtype());
  if (!norm.training) return {out, x.new_empty({0}), x.new_empty({0})};
  follow(norm, mean, variance);
  return {out, mean, at::rsqrt(at::add(variance, norm.eps))};
}

// LibTorch's loop computes wrong sums if one of the two is channels_last in memory and the other is not.
at::MemoryFormat common_format(const at::Tensor& grad, const at::Tensor& x) {
  auto format = x.suggest_memory_format();
  return x.is_contiguous(format) && grad.is_contiguous(format) ? format : at::MemoryFormat::Contiguous;
}

// The sums of the gradients times the normalized values, and of the gradients, per channel.
std::pair<at::Tensor, at::Tensor> channel_gradients(const at::Tensor& grad, const at::Tensor& x, const Shards& weights,
                                                    const Shards& means, const Shards& deviations) {
  Shards alongs, levels;
  for (size_t slot = 0; slot < means.size(); ++slot) {
    auto& shard = body_of(x).shards()[slot];
    at::Tensor none, along, level;
    if (shard.numel()) {
      auto format = common_format(body_of(grad).shards()[slot], shard);
      std::tie(none, along, level) = at::native_batch_norm_backward(
          body_of(grad).shards()[slot].contiguous(format), shard.contiguous(format), weights[slot], {}, {}, means[slot],
          deviations[slot], true, 0, {false, true, true});
    }
    alongs.push_back(along.defined() ? along : zero_per_channel(shard));
    levels.push_back(level.defined() ? level : zero_per_channel(shard));
  }
  return {per_channel(std::move(alongs), x), per_channel(std::move(levels), x)};
}

// The input's gradient on one rank: factor * (grad - level - (x - mean) * slope), where the values per channel already
// contain the factor. Without a level, in evaluation, only the factor is used.
at::Tensor input_gradient(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& factor,
                          const at::Tensor& level, const at::Tensor& slope) {
  if (!level.defined()) return at::mul(grad, along_channels(factor, x));
  auto result = at::sub(x, along_channels(mean, x));
  return result.mul_(along_channels(slope, x))
      .neg_()
      .addcmul_(grad, along_channels(factor, x))
      .sub_(along_channels(level, x));
}

Stack gradients_by_loops(const BatchNormBackward& norm) {
  auto& x = norm.input;
  auto grad = lie_like(norm.grad, x), rstd = norm.inverse_deviation();
  auto means = shards_beside(norm.mean, x), deviations = shards_beside(rstd, x),
       weights = shards_beside(norm.weight, x);
  auto [along, level] = channel_gradients(grad, x, weights, means, deviations);
  Stack results(3, at::Tensor());
  if (norm.mask[1]) results[1] = along;
  if (norm.mask[2]) results[2] = level;
  if (!norm.mask[0]) return results;
  auto count = extent(x, all_but_channels(x));
  auto factor = scaled(rstd, norm.weight);
  auto factors = shards_beside(factor, x);
  Shards shifts(means.size()), slopes(means.size()), inputs;
  if (norm.training) {
    shifts = shards_beside(at::mul(at::div(settle(level), count), factor), x);
    slopes = shards_beside(at::mul(at::div(settle(along), count), at::mul(rstd, factor)), x);
  }
  for (size_t slot = 0; slot < means.size(); ++slot) {
    auto &gradient = body_of(grad).shards()[slot], &shard = body_of(x).shards()[slot];
    inputs.push_back(input_gradient(gradient, shard, means[slot], factors[slot], shifts[slot], slopes[slot]));
  }
  results[0] = wrap(std::move(inputs), &layout_of(x), x.sizes(), result_strides(x), x.dtype());
  return results;
}

// --- the forms of the op

// op(input, weight, bias, ..., momentum, eps), with the given running statistics.
Stack normalized(const Stack& stack, const at::Tensor& running_mean, const at::Tensor& running_var, bool training) {
  auto count = stack.size();
  auto momentum = stack[count - 2].toDouble(), eps = stack[count - 1].toDouble();
  BatchNorm norm{settle(stack[0].toTensor()),
                 optional_tensor(stack[1]),
                 optional_tensor(stack[2]),
                 running_mean,
                 running_var,
                 training,
                 momentum,
                 eps};
  bool loops = suits_loops(norm.input, {norm.weight, norm.bias, running_mean, running_var});
  return loops ? by_loops(norm) : by_ops(norm);
}

void with_running(Stack& stack) {
  stack = normalized(stack, optional_tensor(stack[3]), optional_tensor(stack[4]), stack[5].toBool());
}

void without_running(Stack& stack) { stack = normalized(stack, {}, {}, true); }

void no_training(Stack& stack) { stack = normalized(stack, stack[3].toTensor(), stack[4].toTensor(), false); }

// The newer ops, with a reserve that only other devices use.
void with_update(Stack& stack) {
  stack = normalized(stack, stack[3].toTensor(), stack[4].toTensor(), true);
  stack.emplace_back(at::empty({0}, at::kByte));
}

void no_update(Stack& stack) {
  auto running_mean = optional_tensor(stack[3]), running_var = optional_tensor(stack[4]);
  stack = normalized(stack, running_mean, running_var, !running_mean.defined());
  stack.emplace_back(at::empty({0}, at::kByte));
}

// Under a guide, the input is replicated except for its channels, and these are in one run if they have weights.
void bring_all_but_channels(c10::IValue& input, bool weighted) {
  auto x = input.toTensor();
  if (!is_dtensor(x)) return;
  auto placements = placements_of(x);
  for (auto& placement : placements) {
    if (cut_dim(placement) != 1 || (weighted && !is_shard(placement))) placement = Replicate();
  }
  at::NoGradGuard below_autograd;
  input = redistribute(x, placements);
}

void batch_norm_backward(Stack& stack) {
  bool training = stack[7].toBool();
  auto wanted = stack[9].toBoolList();
  BatchNormBackward norm{stack[0].toTensor(),
                         settle(stack[1].toTensor()),
                         optional_tensor(stack[2]),
                         optional_tensor(stack[training ? 5 : 3]),
                         optional_tensor(stack[training ? 6 : 4]),
                         training,
                         stack[8].toDouble(),
                         {wanted[0], wanted[1], wanted[2]}};
  bool loops = suits_loops(norm.input, {norm.grad, norm.weight, norm.mean, norm.spread});
  stack = loops ? gradients_by_loops(norm) : gradients_by_ops(norm);
}

}  // namespace

void add_batch_norm(RuleTable& t) {
  auto add = [&t](const char* op, Lowering lowering, size_t input = 0) {
    t.always(op, lowering, /*if_advised=*/[lowering, input](Stack& stack) {
      bring_all_but_channels(stack[input], optional_tensor(stack[input + 1]).defined());
      lowering(stack);
    });
  };
  add("aten::native_batch_norm", with_running);
  add("aten::_native_batch_norm_legit", with_running);
  add("aten::_native_batch_norm_legit.no_stats", without_running);
  add("aten::_native_batch_norm_legit_no_training", no_training);
  add("aten::_batch_norm_with_update", with_update);
  add("aten::_batch_norm_no_update", no_update);
  add("aten::native_batch_norm_backward", batch_norm_backward, 1);
  add("aten::batch_norm_backward", batch_norm_backward, 1);
  t.hands_on({"aten::batch_norm", "aten::_batch_norm_impl_index"});
  // LibTorch's schemas do not say that a training step writes to the running statistics.
  std::vector<std::string> statistics = {"running_mean", "running_var"};
  t.traits({"aten::batch_norm", "aten::_batch_norm_impl_index", "aten::native_batch_norm"},
           [&](Traits& traits) { traits.writes = UnannouncedWrites{statistics, "training"}; });
  t.traits("aten::instance_norm").writes = UnannouncedWrites{statistics, "use_input_stats"};
}

}  // namespace intarsia
