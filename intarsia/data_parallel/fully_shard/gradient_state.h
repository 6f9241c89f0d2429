#pragma once
// Where the gradient of a fully_shard parameter is, and which events move it: one enum, one table of transitions.

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "intarsia/core/layout.h"
#include "intarsia/data_parallel/leaf_hooks.h"

namespace intarsia {

enum class GradientState {
  none,                 // no gradient of ours: leaf.grad is empty, or reduced, or the program's
  pending,              // leaf.grad is the sum of passes without sync, [P(avg)] over the axes of data parallelism
  pending_over_copies,  // leaf.grad is reduced over the shards, and [P(avg)] over the copies
  accumulating,         // autograd adds the gradient of the whole to leaf.grad; the program's gradient is kept aside
  unreduced,            // the gradient of the whole is kept here, and leaf.grad is the program's
};

enum class GradientEvent {
  before_accumulate,  // autograd is about to add a gradient
  after_accumulate,   // it has added it
  fail,               // the pass has failed
  defer,              // a pass without sync leaves its gradient to a later one
  fetch,              // a pass with sync reduces what earlier ones have left, though it has none itself
  send,               // the parts of the gradient are being sent to other ranks
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

// An event without a row for a state cannot occur in that state. `none` at the end of a row stands for whatever
// leaf.grad is by then: the program may have put something there.
c10::ArrayRef<GradientTransition> gradient_transitions();

const char* name_of(GradientState state);
const char* name_of(GradientEvent event);

// The two places beside leaf.grad, and the state that follows from all three.
class GradientSlot {
 public:
  explicit GradientSlot(const at::Tensor& leaf) : leaf_(leaf) {}
  // The layouts of leaf.grad in the two pending states; the second one is null if there are no copies.
  void set_layouts(const Layout* pending, const Layout* pending_over_copies);

  GradientState state() const;
  bool is_pending() const { return is_laid_out(pending_); }
  bool is_pending_over_copies() const { return is_laid_out(pending_over_copies_); }
  // The state in which the event occurs; an internal error if the table has no row for it.
  GradientState on(GradientEvent event) const;

  const at::Tensor& unreduced() const { return unreduced_; }
  void set_unreduced(at::Tensor grad);  // undefined: removes it
  // Keeps leaf.grad aside, and replaces it by `start`, to which autograd adds.
  void begin_accumulating(at::Tensor start);
  // Takes what leaf.grad has become, and restores what was kept aside.
  at::Tensor end_accumulating();

 private:
  bool is_laid_out(const Layout* layout) const;

  WeakTensor leaf_;
  const Layout* pending_ = nullptr;
  const Layout* pending_over_copies_ = nullptr;
  GradientState kept_ = GradientState::none;  // accumulating or unreduced; else leaf.grad decides
  at::Tensor unreduced_;                      // of the whole; per rank in a simulation; see Note [Terms of an average]
  at::Tensor aside_;                          // the program's leaf.grad, while autograd accumulates
};

}  // namespace intarsia
