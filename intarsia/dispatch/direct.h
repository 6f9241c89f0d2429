#pragma once
// Calls that only need local tensors in place of distributed ones.

#include <algorithm>

#include "intarsia/dispatch/key.h"
#include "intarsia/dispatch/op.h"
#include "intarsia/tensor/body.h"

namespace intarsia {

// Note [The direct path]
// In a real process, most calls find their tensors in the layouts that the op needs: then the arguments are replaced by
// local ones, the op is called, and its results are wrapped. Whatever is not that simple is left to the caller, with
// nothing done.
class DirectCall {
 public:
  explicit DirectCall(const Op& op) : op_(op) {}

  // Call `admits` with every tensor among the arguments, then `follows`.
  bool admits(const at::Tensor& tensor);
  bool follows(const Decision* decision);  // the caller holds it; null: nothing is known
  const Decision& decision() const { return *decision_; }

  // The part of a tensor that this rank works on, redistributed if need be. Call it with all tensors in order,
  // undefined ones included.
  at::Tensor next_local(const at::Tensor& tensor);

  // Adds a number among the arguments. Call it with all of them in order.
  void add_number(const c10::Scalar& number);
  void add_numbers(uint64_t bits) { numbers_ = bits; }  // of all numbers at once

  // The local value of argument `arg` if it holds a size of the result, or a part of one.
  c10::SymIntArrayRef local_sizes(c10::SymIntArrayRef sizes, int arg) const;
  c10::SymInt local_size(c10::SymInt size, int arg) const;

  // Whether the local tensors are ordinary CPU tensors, whose kernel may be called directly. Conjugate views and other
  // devices go through LibTorch's dispatcher.
  bool goes_to_cpu() const;

  // A result as a distributed tensor. Call it with all results in order.
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
  at::Tensor shown_;  // what an in-place op returns, or what a view views
  c10::DispatchKeySet keys_;
  int operand_ = 0, result_ = 0;
  const Layout* seen_ = nullptr;           // of the last distributed operand
  Origin operands_, last_operand_, made_;  // see Note [Origins]
  uint64_t numbers_ = 0;
};

}  // namespace intarsia
