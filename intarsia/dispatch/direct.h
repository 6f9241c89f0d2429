#pragma once
// Calls that need no more than local tensors in place of distributed ones.

#include <algorithm>

#include "intarsia/dispatch/key.h"
#include "intarsia/dispatch/op.h"
#include "intarsia/tensor/body.h"

namespace intarsia {

// Note [The direct path]
// In a real process most calls find their tensors where the op wants them: then the arguments are exchanged for local
// ones, the op is called, and its results are wrapped. Whatever is not that simple is left to the caller, with nothing
// done.
class DirectCall {
 public:
  explicit DirectCall(const Op& op) : op_(op) {}

  // To be asked of every tensor among the arguments, then of the whole.
  bool admits(const at::Tensor& tensor);
  bool follows(const Decision* decision);  // which the caller holds; null: nothing is known
  const Decision& decision() const { return *decision_; }

  // The part of a tensor that this rank works on, moved if need be. To be asked of all tensors in order, undefined ones
  // included.
  at::Tensor next_local(const at::Tensor& tensor);

  // A number among the arguments. To be told of all in order.
  void add_number(const c10::Scalar& number);
  void add_numbers(uint64_t bits) { numbers_ = bits; }  // of all of them

  // What argument `arg` is on this rank if it tells a size of the result, or part of one.
  c10::SymIntArrayRef local_sizes(c10::SymIntArrayRef sizes, int arg) const;
  c10::SymInt local_size(c10::SymInt size, int arg) const;

  // Whether the local tensors are ordinary CPU tensors, whose kernel may be called straight away. Conjugate views and
  // other devices take the whole way.
  bool goes_to_cpu() const;

  // A result as a distributed tensor. To be asked of all in order.
  at::Tensor next_result(at::Tensor local);

 private:
  void add_origin(const at::Tensor& tensor, const DTensorBody* body);
  bool is_size(int arg) const {
    return std::find(op_.size_args.begin(), op_.size_args.end(), arg) != op_.size_args.end();
  }

  const Op& op_;
  const at::Tensor* first_ = nullptr;
  const DeviceMesh* mesh_ = nullptr;
  const Decision* decision_ = nullptr;
  at::Tensor shown_;  // what an in-place op returns, or what a view shows
  c10::DispatchKeySet keys_;
  int operand_ = 0, result_ = 0;
  const Layout* seen_ = nullptr;           // of the last distributed operand
  Origin operands_, last_operand_, made_;  // see Note [Origins]
  uint64_t numbers_ = 0;
};

}  // namespace intarsia
