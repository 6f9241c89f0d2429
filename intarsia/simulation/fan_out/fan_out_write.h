#pragma once
// Plain tensors that an op on per-rank tensors writes to.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Storage.h>

namespace intarsia {

// Note [A plain tensor that becomes one per rank]
// Over processes every rank has a plain parameter of its own, and an optimizer that steps with a gradient of one's own
// rank makes the parameters differ. A simulation has one plain tensor for all ranks as long as they are equal. An op
// that writes a value per rank into it is run on a copy for each rank; if all of them come out alike, bit for bit, the
// tensor stays one plain tensor with that value. If not, it becomes a per-rank tensor where it stands: the same
// TensorImpl, so that modules, optimizers and the graph go on with it, its gradient, its hooks and its version counter.
//
// What else sees its memory must become so, too, or it would show the values of one rank. Known are its base, if it is
// a view; what else is among the arguments; and the parameter behind p.data(), which optimizers write to: backward
// notes each plain leaf whose gradient is one per rank. Where the memory is seen by others than these, the write is an
// error.
class PlainTargets {
 public:
  // Makes the plain ones among the written tensors one per rank, for `slots` ranks.
  PlainTargets(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args, size_t slots);
  // After the write: those that are equal on all ranks are plain again. Without, all are, with what the first rank
  // wrote.
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

// Whether the op writes to an argument of which its schema does not say so: batch norm and instance norm, in training,
// to their running statistics.
bool writes_unannounced(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args);

// Lets a plain tensor stand for one per rank of `slots` ranks, each with its value: its views by numbers that are one
// per rank may then be written to. An error if others see its memory, see above.
void become_per_rank(const at::Tensor& tensor, size_t slots);

// To be called by ops on per-rank tensors: in a backward that leaves a gradient with a plain leaf, notes the leaf.
void note_leaf();

}  // namespace intarsia
