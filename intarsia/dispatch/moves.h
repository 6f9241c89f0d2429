#pragma once
// Brings an argument of an op to the layout that was chosen for it.

#include "intarsia/tensor/body.h"

namespace intarsia {

// The shards of `tensor` in that layout. The plan leads there; it is traced as chosen by the op, and judged as a whole
// by the policy for implicit moves.
Shards moved_for(const char* op, const at::Tensor& tensor, const Layout* layout, const Plan& plan);

// Does what is pending in `tensor`, in place, so that the op can write to it. Traced and judged alike.
void settle_for(const char* op, const at::Tensor& tensor);

}  // namespace intarsia
