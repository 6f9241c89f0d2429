#pragma once
// How dispatch treats what it cannot do silently: plain tensors among distributed ones, and ops without a rule.

#include <string>

namespace intarsia {

// What happens to a plain tensor of more than one element that meets a distributed one.
enum class PlainTensors {
  error,      // the default: say which argument it is and what to do
  replicate,  // take it as a replicated tensor: the caller vouches that all ranks hold the same
  verify,     // the same, after checking that they do
};

// Sets the policy on this thread while it lives.
class PlainTensorScope {
 public:
  explicit PlainTensorScope(PlainTensors policy);
  ~PlainTensorScope();
  PlainTensorScope(const PlainTensorScope&) = delete;
  PlainTensorScope& operator=(const PlainTensorScope&) = delete;

 private:
  PlainTensors outer_;
};
PlainTensors plain_tensor_policy();

// While it lives, an op without a rule is an error instead of running on whole tensors. The environment variable
// INTARSIA_STRICT=1 sets this for the process.
class StrictScope {
 public:
  explicit StrictScope(bool strict = true);
  ~StrictScope();
  StrictScope(const StrictScope&) = delete;
  StrictScope& operator=(const StrictScope&) = delete;

 private:
  bool outer_;
};
bool is_strict();

// While it lives, a wrong value in a shard (an index out of range) is an error on the rank that holds it only, and no op
// waits for word from the others: for loops that count microseconds and whose values are known to be right.
class LocalErrorScope {
 public:
  explicit LocalErrorScope(bool local = true);
  ~LocalErrorScope();
  LocalErrorScope(const LocalErrorScope&) = delete;
  LocalErrorScope& operator=(const LocalErrorScope&) = delete;

 private:
  bool outer_;
};
bool errors_are_local();

// What happens when an op writes in place to a value whose reduction is pending, and cannot leave it so: clamp_, relu_,
// add_ of a number.
enum class PendingWrites {
  settle,  // the default: the reduction is done first, for all who see the tensor; the value is the same
  error,   // as PyTorch's DTensor: an error. fill_, which leaves it pending, gives every rank's term the number
};
// For the whole process.
void set_pending_writes(PendingWrites policy);
PendingWrites pending_writes();

}  // namespace intarsia
