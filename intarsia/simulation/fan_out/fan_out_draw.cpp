#include "intarsia/simulation/fan_out/fan_out_draw.h"

#include <mutex>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>

namespace intarsia {
namespace {

at::Tensor state_of(at::Generator& generator) {
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator& generator, const at::Tensor& state) {
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

thread_local int64_t apart = 0;

}  // namespace

DrawnAlike::DrawnAlike(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args) : op_(op) {
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return;
  generator_ = at::detail::getDefaultCPUGenerator();
  for (auto& arg : args) {
    if (arg.isGenerator() && arg.toGenerator().defined()) generator_ = arg.toGenerator();
  }
  before_ = state_of(generator_);
}

void DrawnAlike::begin(size_t slot) {
  if (!before_.defined() || slot == 0) return;
  compare();
  set_state(generator_, before_);
}

void DrawnAlike::finish() {
  if (!before_.defined()) return;
  compare();
  if (!equal_) {
    set_state(generator_, before_);
    ++apart;
  }
  TORCH_CHECK_VALUE(
      equal_, "[", op_.operator_name(),
      "] the simulated ranks draw different amounts of random numbers, so that their ",
      "generators would differ. Draw tensors of one shape, or seed each rank (from Python: torch.manual_seed(rank)).");
}

void DrawnAlike::compare() {
  at::NoGradGuard no_grad;
  auto now = state_of(generator_);
  if (!after_.defined()) after_ = now;
  equal_ = equal_ && at::equal(now, after_);
}

int64_t draws_apart() { return apart; }

}  // namespace intarsia
