#pragma once
// Records which call made a tensor: see Note [Origins].

#include "intarsia/comm/call_log.h"
#include "intarsia/dispatch/call.h"

namespace intarsia {

struct Decision;

// The origin of the tensors that go into a call.
Origin origin_of_operands(const Call& call);

// Numbers, as bits that are the same in every process: of an argument, of a plain tensor of one element, and of all
// numbers among the arguments.
uint64_t bits_of(const c10::Scalar& number);
uint64_t bits_of_number(const at::Tensor& plain);
uint64_t bits_of_numbers(const Op& op, c10::ArrayRef<c10::IValue> args);

// Records the call; returns the origin of what it makes and writes.
Origin noted(const Call& call, const Decision& decision, const Origin& operands);

// Sets the origin of the results, which are the last values on the stack.
void mark_results(const Op& op, const std::vector<c10::IValue>& stack, const Origin& made);

}  // namespace intarsia
