#pragma once
// Functions of LibTorch that make plain tensors on their way.

#include <ATen/core/dispatch/Dispatcher.h>

namespace intarsia {

// LibTorch's own, which makes masks and windows on its way and writes into what it has made: the former are the same on
// every rank, so they count as replicated, and the latter must not be pending. What the caller gives must be distributed,
// as always. For RuleTable::composite_boxed.
void with_own_tensors(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace intarsia
