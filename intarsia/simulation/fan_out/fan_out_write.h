#pragma once
// Plain tensors that an op on per-rank tensors writes to.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Storage.h>

namespace intarsia {

// Note [A plain tensor that becomes one per rank]
// In a real job, every rank has its own copy of a plain parameter, and an optimizer that steps with per-rank gradients
// makes the copies differ. A simulation has one plain tensor for all ranks as long as they are equal. An op that writes
// per-rank values into it runs on a copy for each rank; if all results are equal, bit for bit, the tensor stays one
// plain tensor with that value. If not, it becomes a per-rank tensor in place: the same TensorImpl, so that modules,
// optimizers and the graph still refer to it, with its gradient, its hooks and its version counter.
//
// Other tensors that see its memory must be converted as well, or they would show the values of one rank. Known are its
// base, if it is a view; the other arguments; and the parameter behind p.data(), which optimizers write to: backward
// records each plain leaf whose gradient is per-rank. If any other tensor sees the memory, the write is an error.
class PlainTargets {
 public:
  // Makes the plain ones among the written tensors per-rank, for `slots` ranks.
  PlainTargets(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args, size_t slots);
  // Call this after the write: tensors that are equal on all ranks become plain again. Without this call all of them
  // do, with what the first rank wrote.
  void finish();
  ~PlainTargets();
  PlainTargets(const PlainTargets&) = delete;
  PlainTargets& operator=(const PlainTargets&) = delete;

 private:
  struct Target;
  friend void become_per_rank(const at::Tensor& tensor, size_t slots);
  PlainTargets() = default;
  void add(const std::string& op, c10::ArrayRef<c10::IValue> args, const at::Tensor& tensor, size_t slots);

  std::vector<Target> targets_;
};

// Whether the op writes to an argument although its schema does not say so: batch norm and instance norm, in training,
// to their running statistics.
bool writes_unannounced(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args);

// Makes a plain tensor stand for a value on each of `slots` ranks; its views by per-rank numbers may then be written
// to. An error if other tensors see its memory, see above.
void become_per_rank(const at::Tensor& tensor, size_t slots);

// Ops on per-rank tensors call this: in a backward that leaves a gradient at a plain leaf, it records the leaf.
void note_leaf();

}  // namespace intarsia
