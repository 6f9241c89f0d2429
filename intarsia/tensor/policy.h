#pragma once
// Policies of dispatch: for plain tensors among distributed ones, ops without a rule, errors of one rank, and in-place
// writes to pending values.

#include <string>

namespace intarsia {

// How dispatch treats a plain tensor of more than one element beside a distributed one.
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
// ended. Autograd numbers the nodes of a thread in order of creation, so a scope remembers its first and last number,
// and an autograd formula that meets a plain tensor follows the scope in which its node was created.

// The policy for the node that autograd runs on this thread: that of the scope in which it was created; `error` if
// there was none.
PlainTensors plain_tensor_policy_of_graph();
// Gives the node that this thread has created last, a derivative of the one that autograd runs, the policy of that
// one's scope.
void pass_on_policy(PlainTensors policy);

// Note [State from before]
// An optimizer may be created, and may have made steps, before fully_shard shards its parameters: its state is plain,
// and the same on all ranks. When a gradient is first added to it, it becomes distributed like that gradient, once the
// ranks have compared it. The layouts of such gradients are recorded here; any other plain tensor that is written to is
// an error as usual. A gradient of a pass without sync is a pending average: state beside it is sharded like the
// parameter.
class Layout;
void let_plain_state_follow(const Layout* gradient, const Layout* state);
const Layout* layout_of_plain_state(const Layout* gradient);  // null: it does not follow such a gradient

// While it lives, an op without a rule raises an error instead of running on whole tensors. The environment variable
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

// While it lives, a wrong value in a shard (an index out of range) is an error only on the rank that holds it, and no
// op waits for a message from the others: for loops that count microseconds and whose values are known to be right.
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

// How an in-place op treats a value whose reduction is pending if it cannot leave it so: clamp_, relu_, add_ of a
// number.
enum class PendingWrites {
  settle,  // the default: the reduction runs first, for all tensors that see the memory; the value is the same
  error,   // an error, as in PyTorch's DTensor. fill_, which leaves it pending, gives every rank's term the number
};
// For the whole process.
void set_pending_writes(PendingWrites policy);
PendingWrites pending_writes();

}  // namespace intarsia
