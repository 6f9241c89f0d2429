#pragma once
// Policies of dispatch for plain tensors among distributed ones, and for ops without a rule.

#include <string>

namespace intarsia {

// What happens to a plain tensor of more than one element that meets a distributed one.
enum class PlainTensors {
  error,      // the default: say which argument it is and what to do
  replicate,  // take it as a replicated tensor: the caller vouches that all ranks hold the same
  verify,     // the same, after checking that they do
};

// Sets the policy on this thread while it lives, also for the backward pass of what is computed in it: see Note [Scopes
// and graphs].
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

// Note [Scopes and graphs]
// The backward pass of an op meets the plain tensors that the op saved, long after the scope that admitted them has
// ended. Autograd numbers the nodes of a thread in the order in which they are made, so a scope remembers its first and
// last number, and a formula of autograd that meets a plain tensor follows the scope in which its node was made.

// The policy for the node that autograd runs on this thread: that of the scope in which it was made; error if there is
// none.
PlainTensors plain_tensor_policy_of_graph();
// The node that this thread has made last belongs to the same scope as the one that autograd runs: a derivative of it.
void pass_on_policy(PlainTensors policy);

// Note [State from before]
// An optimizer may be made, and may have made steps, before fully_shard cuts its parameters: its state is plain, and
// the same on all ranks. When a gradient is first added to it, it becomes distributed like that gradient, once the
// ranks have compared it. The layouts of such gradients are known here; another plain tensor that is written to is an
// error as ever. A gradient of a pass without sync is a pending average: state beside it becomes cut like the
// parameter.
class Layout;
void let_plain_state_follow(const Layout* gradient, const Layout* state);
const Layout* layout_of_plain_state(const Layout* gradient);  // null: it does not follow such a gradient

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

// While it lives, a wrong value in a shard (an index out of range) is an error on the rank that holds it only, and no
// op waits for word from the others: for loops that count microseconds and whose values are known to be right.
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
