#pragma once
// Ops on distributed tensors that have a form but no data: their shards are on LibTorch's meta device.
//
// Note [Tensors without data]
// A program may make them to fill them later; they say that they are on the meta device. explain rehearses a step with
// them: then they say that they are on the device of their mesh, as the real ones will be, so that what a model makes for
// itself mixes with them as it will. Many ops of LibTorch cannot run on the meta device;
// but what an op gives follows from its decision, so most need not run at all.

#include "intarsia/tensor/call.h"
#include "intarsia/tensor/cache.h"

namespace intarsia {

// While it lives, this thread rehearses.
class RehearsalScope {
 public:
  RehearsalScope();
  ~RehearsalScope();
  RehearsalScope(const RehearsalScope&) = delete;
  RehearsalScope& operator=(const RehearsalScope&) = delete;
};
bool is_rehearsing();

template <class Inputs>
bool lack_data(const Inputs& inputs) {
  for (auto& shards : inputs) {
    if (!shards.empty() && shards[0].is_meta()) return true;
  }
  return false;
}

// The results of all hosted ranks; false where the op must run: views and writes do on the meta device.
bool run_without_data(const Call& call, const Decision& decision, std::vector<std::vector<c10::IValue>>& results);

// The same for plain tensors on the meta device: arguments for results.
void call_without_data(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack);

}  // namespace intarsia
