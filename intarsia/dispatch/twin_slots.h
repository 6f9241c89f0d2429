#pragma once
// Simulated ranks that do the same in one call of an op because their arguments are twins: see Note [Twins] in
// core/twins.h.

#include <vector>

#include "intarsia/dispatch/cache.h"
#include "intarsia/dispatch/call.h"
#include "intarsia/simulation/twins/twins.h"

namespace intarsia {

using Inputs = c10::SmallVector<Shards, 4>;  // per operand; empty where it is plain or undefined

// made_from of core/twins.h for a tensor or a list of them; any other value is the same for all.
c10::IValue made_from(const c10::IValue& result, c10::ArrayRef<at::Tensor> from, c10::ArrayRef<at::Tensor> to);

class TwinSlots {
 public:
  TwinSlots(const Call& call, const Decision& decision, const Inputs& inputs);

  // The first slot that does the same as this one.
  size_t first(size_t slot) const { return first_.empty() ? slot : first_[slot]; }

  // The tensors that a slot gets if there are several slots, and those to which the first of several writes on behalf
  // of the others.
  std::vector<at::Tensor> tensors_at(size_t slot) const;
  void write_for_others(size_t slot, WriteForTwins& writes) const;

  // The results of the first slot as those of another that does the same.
  std::vector<c10::IValue> results(const std::vector<c10::IValue>& of_first, size_t slot) const;

 private:
  const Call& call_;
  const Inputs& inputs_;
  std::vector<size_t> first_;  // empty if there is one slot
  std::vector<size_t> next_;   // the next one that does the same; 0 for none
  std::vector<char> written_;  // per operand
};

}  // namespace intarsia
