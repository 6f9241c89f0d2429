#pragma once
// Scales losses, so that small gradients survive half precision: torch.amp.GradScaler, for plain and distributed
// parameters.
//
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);  // only if gradients are read before the step, to clip them for example
//   scaler.step(optimizer);
//   scaler.update();

#include <cstdint>
#include <map>
#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace intarsia {

// The same as in Python.
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;  // of the scale, after this many steps in a row that were not skipped:
  int64_t growth_interval = 2000;
  double backoff_factor = 0.5;  // of the scale, after a step that was skipped
  bool enabled = true;          // otherwise nothing is scaled, and step() is the optimizer's
};

// All ranks of the current world call unscale_, step and update together: a gradient that is infinite or not a number
// on one rank makes all of them skip the step.
class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  at::Tensor scale(const at::Tensor& loss) const;
  // Divides the gradients by the scale, once between two updates. Gradients whose sum is pending are reduced first.
  void unscale_(torch::optim::Optimizer& optimizer);
  // Unscales unless that is done, and steps unless a gradient of any rank is not finite. Returns whether it stepped.
  bool step(torch::optim::Optimizer& optimizer);
  // The scale of the next step: smaller if one was skipped, larger after growth_interval others, or the given one.
  void update(std::optional<double> new_scale = std::nullopt);

  double get_scale() const;
  bool is_enabled() const { return options_.enabled; }

  // For a checkpoint, also of a scaler that is not enabled.
  struct State {
    double scale;
    int64_t growth_tracker;  // how many steps in a row were not skipped
  };
  State state() const;
  void set_state(const State& state);

 private:
  enum class Stage { ready, unscaled, stepped };
  struct Progress {
    Stage stage = Stage::ready;
    bool found_inf = false;
  };
  GradScalerOptions options_;
  at::Tensor scale_, growth_tracker_;                              // as the ops of LibTorch require them
  std::map<const torch::optim::Optimizer*, Progress> optimizers_;  // since the last update
};

}  // namespace intarsia
