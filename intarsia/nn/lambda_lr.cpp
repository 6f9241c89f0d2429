#include "intarsia/nn/lambda_lr.h"

#include <cmath>

#include <c10/util/Exception.h>

namespace intarsia {

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, std::function<double(int64_t)> factor)
    : LRScheduler(optimizer), factor_(std::move(factor)), base_lrs_(get_current_lrs()) {
  TORCH_CHECK_VALUE(factor_, "[LambdaLR] there is no function from a step to a factor. Give one.");
  step();  // as in Python: the first rate is that of step 0
}

std::vector<double> LambdaLR::get_lrs() {
  auto rates = base_lrs_;
  auto factor = factor_(step_count_);
  for (auto& rate : rates) rate *= factor;
  return rates;
}

double warmup_cosine(int64_t step, int64_t warmup, int64_t total, double least) {
  TORCH_CHECK_VALUE(0 <= warmup && warmup < total, "[warmup_cosine] ", warmup, " steps of warmup do not fit into ",
                    total, " steps. Give fewer.");
  if (step < warmup) return static_cast<double>(step) / static_cast<double>(warmup);
  auto way = std::min(1.0, static_cast<double>(step - warmup) / static_cast<double>(total - warmup));
  return least + (1 - least) * (1 + std::cos(M_PI * way)) / 2;
}

}  // namespace intarsia
