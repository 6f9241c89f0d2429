#pragma once
// Runs out= ops, and in-place ops that change a tensor's form, by means of their functional ops.

#include <vector>

#include "intarsia/dispatch/op.h"

namespace intarsia {

// out=: runs the functional op, brings each result to the layout of its out tensor, and copies it in.
void run_out_op(const Op& op, std::vector<c10::IValue>& stack);

// transpose_, squeeze_ and the like: the tensor takes over the form and the body of the functional op's result.
void run_form_op(const Op& op, std::vector<c10::IValue>& stack);

}  // namespace intarsia
