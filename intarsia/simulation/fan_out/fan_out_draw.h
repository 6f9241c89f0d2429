#pragma once
// Random ops on per-rank tensors.

#include <cstddef>
#include <cstdint>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace intarsia {

// In a real job, ranks with the same seed draw the same numbers, each from its own generator. Simulated ranks share one
// generator, so every rank draws from the state in which the first one found it. If they draw different amounts, real
// generators would differ from then on, which one generator cannot represent: it is set back, and an error is raised.
class DrawnAlike {
 public:
  DrawnAlike(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args);  // does nothing if the op draws nothing
  void begin(size_t slot);
  void finish();  // call it after the last rank

 private:
  void compare();
  const c10::OperatorHandle& op_;
  at::Generator generator_;
  at::Tensor before_, after_;  // states
  bool equal_ = true;
};

// How often this thread raised that error. Python then gives each rank a separate generator.
int64_t draws_apart();

}  // namespace intarsia
