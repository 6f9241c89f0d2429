#pragma once
// Runs an op on per-rank tensors, rank by rank.

#include <functional>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

namespace intarsia {

using Arguments = std::vector<c10::IValue>;

// The number of ranks that the arguments have values for; 0 if they are the same on all.
size_t slots_of(c10::ArrayRef<c10::IValue> args);

// Whether the ranks see different sizes, in their tensors or in numbers among the arguments.
bool differ_by_rank(c10::ArrayRef<c10::IValue> args);

// Whether the ranks' tensors have no data, see Note [Tensors without data].
bool without_data(c10::ArrayRef<c10::IValue> args);

// A rank's value of the tensor. Beside tensors without data, only the form of one with data matters.
at::Tensor tensor_at(const at::Tensor& tensor, size_t slot, bool without_data);

// All tensors in an argument, including those in lists.
std::vector<at::Tensor> tensors_in(const c10::IValue& arg);

// The argument with `local(tensor)` for every tensor, and the rank's numbers for per-rank numbers.
using LocalOf = std::function<at::Tensor(const at::Tensor&)>;
c10::IValue argument_at(const c10::IValue& arg, size_t slot, const LocalOf& local);

// Joins result number r of all ranks: tensors and sizes become per-rank ones, other values must agree.
c10::IValue join(const std::vector<Arguments>& results, size_t r, const c10::OperatorHandle& op);

// Raises an error if result number r is a list that is longer on one rank than on another.
void check_equal_lists(const std::vector<Arguments>& results, size_t r, const c10::OperatorHandle& op);

// The arguments that the op writes to. For plain ones among them, see fan_out_write.h.
std::vector<size_t> written_arguments(const c10::OperatorHandle& op);

// The argument that an in-place or out= op returns as result number r; -1 for a new result.
int64_t argument_returned(const c10::FunctionSchema& schema, size_t r);

// The per-rank argument that result number r, or the tensors of that list, may view; -1 for none.
int64_t argument_viewed(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> args, size_t r);

// Takes the arguments of an op from the stack.
Arguments pop_arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack);

// The kernel of all ops on per-rank tensors, below autograd.
void fan_out(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

}  // namespace intarsia
