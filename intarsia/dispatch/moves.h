#pragma once
// Brings an argument of an op to the layout that was chosen for it.

#include "intarsia/tensor/body.h"

namespace intarsia {

// The shards of `tensor` in that layout, to which `plan` leads. The trace shows it as chosen by the op, and the policy
// for implicit moves checks the plan as a whole.
Shards moved_for(const char* op, const at::Tensor& tensor, const Layout* layout, const Plan& plan);

// Runs the pending reduction of `tensor`, in place, so that the op can write to it. Traced and checked likewise.
void settle_for(const char* op, const at::Tensor& tensor);

}  // namespace intarsia
