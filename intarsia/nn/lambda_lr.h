#pragma once
// A learning rate that is a function of the step, like torch.optim.lr_scheduler.LambdaLR. LibTorch has none in C++.
//
//   LambdaLR schedule(optimizer, [](int64_t step) { return warmup_cosine(step, 100, 10000); });
//   ...
//   optimizer.step();
//   schedule.step();

#include <cstdint>
#include <functional>
#include <vector>

#include <torch/optim/schedulers/lr_scheduler.h>

namespace intarsia {

class LambdaLR final : public torch::optim::LRScheduler {
 public:
  // The learning rate of each parameter group becomes its present rate times factor(0), and after k calls of step()
  // times factor(k).
  LambdaLR(torch::optim::Optimizer& optimizer, std::function<double(int64_t step)> factor);

  std::vector<double> get_last_lr() const { return get_current_lrs(); }
  const std::vector<double>& base_lrs() const { return base_lrs_; }
  // For a checkpoint: continues as the scheduler that had these rates.
  void set_base_lrs(std::vector<double> rates) { base_lrs_ = std::move(rates); }

 private:
  std::vector<double> get_lrs() override;
  std::function<double(int64_t)> factor_;
  std::vector<double> base_lrs_;
};

// From 0 to 1 in `warmup` steps, then along half a cosine down to `least` at step `total`, where it stays.
double warmup_cosine(int64_t step, int64_t warmup, int64_t total, double least = 0);

}  // namespace intarsia
