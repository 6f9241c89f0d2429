#pragma once
// Ops on distributed tensors that have a form but no data: their shards are on LibTorch's meta device. See
// Note [Tensors without data].

#include "intarsia/dispatch/cache.h"
#include "intarsia/dispatch/call.h"

namespace intarsia {

template <class Inputs>
bool lack_data(const Inputs& inputs) {
  for (auto& shards : inputs) {
    if (!shards.empty() && shards[0].is_meta()) return true;
  }
  return false;
}

// Computes the results of all hosted ranks; false if the op must run: views and writes do on the meta device.
bool run_without_data(const Call& call, const Decision& decision, std::vector<std::vector<c10::IValue>>& results);

// The same for plain tensors on the meta device: replaces the arguments by the results.
void call_without_data(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack);

}  // namespace intarsia
