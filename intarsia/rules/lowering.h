#pragma once
// A lowering runs an op by means of other ops on distributed tensors and of collectives, where no rank can do its part
// alone. Dispatch makes one per kind of call, keeps it, and runs it on every call of the same form.
//
// Note [Lowerings]
// A planner sees what a rule sees, and the present layouts. It returns a lowering, which takes the arguments of such a
// call, or none if the rows apply. It never sees values, so its answer does not depend on them. A lowering may keep
// numbers of the call that it was made for, but no tensors.

#include <functional>
#include <vector>

#include "intarsia/rules/rule.h"

namespace intarsia {

using Stack = std::vector<c10::IValue>;

// Runs below autograd: replaces the arguments on the stack by the results. Its communication is traced, and checked by
// ImplicitMovesScope, as the op's.
using Lowering = std::function<void(Stack& stack)>;

// A call as its planner sees it.
struct CutCall {
  const OpCall& call;                     // its arguments have None in place of tensors, and its outputs are not known
  const std::vector<const Layout*>& now;  // per tensor; null where it is plain or undefined

  const TensorForm& input(size_t i) const { return call.inputs[i]; }
  bool is_distributed(size_t i) const { return now[i] != nullptr; }
  // Whether a mesh axis shards dim `dim`, or one of the dims, of tensor `i`.
  bool cuts(size_t i, int64_t dim) const;
  bool cuts(size_t i, const std::vector<int64_t>& dims) const;
  bool has_partial(size_t i) const { return now[i] && now[i]->has_partial(); }
  // Whether all distributed tensors are on one mesh; and whether, in addition, no tensor is plain.
  bool share_a_mesh() const;
  bool on_one_mesh() const;
};

using Planner = std::function<Lowering(const CutCall& call)>;

}  // namespace intarsia
