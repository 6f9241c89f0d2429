#pragma once
// Where the gradient of a parameter of fully_shard is, and how it gets from one place to another: one enum, one table.

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "intarsia/core/layout.h"
#include "intarsia/data_parallel/leaf_hooks.h"

namespace intarsia {

enum class GradientState {
  none,                 // no gradient of ours: leaf.grad is empty, or reduced, or what the program has put there
  pending,              // leaf.grad is the sum of passes without sync, [P(avg)] over the axes of data parallelism
  pending_over_copies,  // leaf.grad is reduced over the shards, and [P(avg)] over the copies
  accumulating,  // autograd adds the gradient of the whole to leaf.grad; what the program had there is kept aside
  unreduced,     // the gradient of the whole is kept here, and leaf.grad is what the program had there
};

enum class GradientEvent {
  before_accumulate,  // autograd is about to add a gradient
  after_accumulate,   // it has added it
  fail,               // the pass has failed
  defer,              // a pass without sync is to leave its gradient to a later one
  fetch,              // a pass with sync reduces what earlier ones have left, though it has brought nothing itself
  send,               // the parts of the gradient are on their way to other ranks
  write,              // the reduced gradient is added to leaf.grad
  write_terms,        // the same, with the average over the copies left to a later pass
  take_terms,         // a later pass averages these
};

struct GradientTransition {
  GradientState from;
  GradientEvent event;
  GradientState to;
  const char* what;
};

// An event that has no row for a state cannot come in that state. `none` as the end of a row stands for what leaf.grad
// is by then: the program may have put something there.
c10::ArrayRef<GradientTransition> gradient_transitions();

const char* name_of(GradientState state);
const char* name_of(GradientEvent event);

// The two places beside leaf.grad, and the state that follows from all three.
class GradientSlot {
 public:
  explicit GradientSlot(const at::Tensor& leaf) : leaf_(leaf) {}
  // How leaf.grad is laid out in the two pending states; the second one is null where there are no copies.
  void set_layouts(const Layout* pending, const Layout* pending_over_copies);

  GradientState state() const;
  bool is_pending() const { return is_laid_out(pending_); }
  bool is_pending_over_copies() const { return is_laid_out(pending_over_copies_); }
  // The state in which the event comes; an internal error if the table has no row for it.
  GradientState on(GradientEvent event) const;

  const at::Tensor& unreduced() const { return unreduced_; }
  void set_unreduced(at::Tensor grad);  // or nothing, if it is undefined
  // Keeps leaf.grad aside, and puts `start` in its place, to which autograd adds.
  void begin_accumulating(at::Tensor start);
  // Takes what leaf.grad has become, and puts back what was kept aside.
  at::Tensor end_accumulating();

 private:
  bool is_laid_out(const Layout* layout) const;

  WeakTensor leaf_;
  const Layout* pending_ = nullptr;
  const Layout* pending_over_copies_ = nullptr;
  GradientState kept_ = GradientState::none;  // accumulating or unreduced; else leaf.grad tells
  at::Tensor unreduced_;                      // of the whole; per rank in a simulation; see Note [Terms of an average]
  at::Tensor aside_;                          // leaf.grad of the program, while autograd accumulates
};

}  // namespace intarsia
