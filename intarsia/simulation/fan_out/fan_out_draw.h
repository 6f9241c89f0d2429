#pragma once
// Random ops on tensors that are one per simulated rank.

#include <cstddef>
#include <cstdint>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace intarsia {

// Over processes, ranks that are seeded alike draw alike: each has a generator of its own. Here they have one together,
// so every rank draws from the state in which the first one found it. If they draw different amounts, their generators
// would differ from then on, which one generator cannot show: an error, before which the generator is set back.
class DrawnAlike {
 public:
  DrawnAlike(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args);  // does nothing if the op draws nothing
  void begin(size_t slot);
  void finish();  // after the last one

 private:
  void compare();
  const c10::OperatorHandle& op_;
  at::Generator generator_;
  at::Tensor before_, after_;  // states
  bool equal_ = true;
};

// How often that has been an error on this thread. Python then has each rank draw from a generator of its own.
int64_t draws_apart();

}  // namespace intarsia
