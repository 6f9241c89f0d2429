#pragma once
// The steps of dispatch that have files of their own.

#include <vector>

#include "intarsia/tensor/op.h"

namespace intarsia {

// Nobody has kernels for this key, so redispatching with it leads to an op's composite.
inline const c10::DispatchKeySet kComposite(c10::DispatchKey::FPGA);

// Runs an op whose arguments are the last on the stack; leaves its results there.
void run_op(const Op& op, std::vector<c10::IValue>& stack);

// out=: runs the functional op, brings each result to the layout of its out tensor, and copies it in.
void run_out_op(const Op& op, std::vector<c10::IValue>& stack);

// transpose_, squeeze_ and the like: the tensor takes on the form and the body of the functional op's result.
void run_form_op(const Op& op, std::vector<c10::IValue>& stack);

}  // namespace intarsia
