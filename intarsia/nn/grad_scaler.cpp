#include "intarsia/nn/grad_scaler.h"

#include <algorithm>
#include <exception>
#include <set>
#include <vector>

#include <ATen/ATen.h>

#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/over_ranks.h"

namespace intarsia {
namespace {

using Gradients = std::vector<at::Tensor>;

// The local tensors of a gradient. Terms of a pending sum may be finite where the sum is not, so it is reduced first.
void add_locals(at::Tensor& gradient, Gradients& locals) {
  if (is_dtensor(gradient) && layout_of(gradient).has_partial())
    gradient = redistribute(gradient, settled(placements_of(gradient)));
  if (is_dtensor(gradient)) {
    auto& shards = shards_of(gradient);
    locals.insert(locals.end(), shards.begin(), shards.end());
  } else if (is_per_rank(gradient)) {
    auto& values = values_of(gradient);
    locals.insert(locals.end(), values.begin(), values.end());
  } else {
    locals.push_back(gradient);
  }
}

// By dtype, as LibTorch's op requires, and each memory once: parameters and simulated ranks may share one.
std::map<at::ScalarType, Gradients> local_gradients(torch::optim::Optimizer& optimizer) {
  std::map<at::ScalarType, Gradients> result;
  std::set<std::pair<const void*, int64_t>> seen;
  for (auto& group : optimizer.param_groups()) {
    for (size_t i = 0; i < group.params().size(); ++i) {
      auto& gradient = group.params()[i].mutable_grad();
      if (!gradient.defined()) continue;
      TORCH_CHECK_VALUE(gradient.scalar_type() != at::kHalf, "[GradScaler::unscale_] the gradient of parameter ", i,
                        " is Half, whose range is too small for unscaled gradients. Keep parameters in Float, and ",
                        "compute in Half.");
      TORCH_CHECK_NOT_IMPLEMENTED(gradient.layout() == at::kStrided,
                                  "[GradScaler::unscale_] the gradient of parameter ", i, " is of the layout ",
                                  gradient.layout(), ". Only strided gradients are unscaled.");
      Gradients locals;
      add_locals(gradient, locals);
      for (auto& local : locals) {
        if (local.numel() && seen.emplace(local.storage().unsafeGetStorageImpl(), local.storage_offset()).second)
          result[local.scalar_type()].push_back(local);
      }
    }
  }
  return result;
}

// One rank's finding, and then the worst of all ranks: a mistake on one rank raises an error on all, so that none
// waits.
enum Finding { finite, infinite, mistaken };

Finding unscaled(torch::optim::Optimizer& optimizer, double scale) {
  auto found = at::zeros({1}), inverse = at::full({1}, 1 / scale);
  for (auto& [dtype, gradients] : local_gradients(optimizer)) {
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse);
  }
  return found.item<float>() == 0 ? finite : infinite;
}

bool found_infinite(torch::optim::Optimizer& optimizer, double scale) {
  at::NoGradGuard no_grad;
  std::exception_ptr mistake;
  auto mine = mistaken;
  try {
    mine = unscaled(optimizer, scale);
  } catch (const c10::Error&) {
    mistake = std::current_exception();
  }
  auto worst = static_cast<int>(max_over_ranks(static_cast<double>(mine)));
  if (mistake) std::rethrow_exception(mistake);
  TORCH_CHECK(worst != mistaken, "[GradScaler::unscale_] failed on another rank, whose error says why.");
  return worst == infinite;
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options), scale_(at::full({1}, options.init_scale)), growth_tracker_(at::zeros({1}, at::kInt)) {
  TORCH_CHECK_VALUE(options.init_scale > 0 && options.growth_factor > 1 && options.backoff_factor > 0 &&
                        options.backoff_factor < 1 && options.growth_interval > 0,
                    "[GradScaler] a scale of ", options.init_scale, " that grows by ", options.growth_factor, " after ",
                    options.growth_interval, " steps and shrinks by ", options.backoff_factor,
                    ". Give a scale above 0, a growth above 1, an interval above 0, and a backoff between 0 and 1.");
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const { return options_.enabled ? loss * get_scale() : loss; }

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  auto& progress = optimizers_[&optimizer];
  TORCH_CHECK(progress.stage != Stage::unscaled,
              "[GradScaler::unscale_] this optimizer's gradients are unscaled already. Call it once before update().");
  TORCH_CHECK(progress.stage != Stage::stepped,
              "[GradScaler::unscale_] comes after step(). Call it before, or update() first.");
  progress.found_inf = found_infinite(optimizer, get_scale());
  progress.stage = Stage::unscaled;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return optimizer.step(), true;
  auto& progress = optimizers_[&optimizer];
  TORCH_CHECK(progress.stage != Stage::stepped,
              "[GradScaler::step] this optimizer has stepped already. Call update() first.");
  if (progress.stage == Stage::ready) unscale_(optimizer);
  if (!progress.found_inf) optimizer.step();
  progress.stage = Stage::stepped;
  return !progress.found_inf;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  if (new_scale) {
    TORCH_CHECK_VALUE(*new_scale > 0, "[GradScaler::update] the scale cannot be ", *new_scale, ". Give one above 0.");
    scale_.fill_(*new_scale);
  } else {
    TORCH_CHECK(!optimizers_.empty(),
                "[GradScaler::update] no optimizer has been unscaled or stepped since the last update(). Call step() "
                "first.");
    bool found =
        std::any_of(optimizers_.begin(), optimizers_.end(), [](auto& entry) { return entry.second.found_inf; });
    at::_amp_update_scale_(scale_, growth_tracker_, at::full({1}, found ? 1.f : 0.f), options_.growth_factor,
                           options_.backoff_factor, options_.growth_interval);
  }
  optimizers_.clear();
}

double GradScaler::get_scale() const { return options_.enabled ? scale_.item<float>() : 1; }

GradScaler::State GradScaler::state() const { return {scale_.item<float>(), growth_tracker_.item<int>()}; }

void GradScaler::set_state(const State& state) {
  scale_.fill_(state.scale);
  growth_tracker_.fill_(state.growth_tracker);
}

}  // namespace intarsia
