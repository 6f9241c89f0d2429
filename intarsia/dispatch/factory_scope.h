#pragma once
// What LibTorch's own code makes from nothing while it works on distributed tensors.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "intarsia/core/layout.h"
#include "intarsia/dispatch/factory_layout.h"
#include "intarsia/tensor/policy.h"

namespace intarsia {

// Note [Factories]
// Many functions of LibTorch make tensors on their way: pad_sequence fills one and writes the sequences into it, vander
// begins with ones, orthogonal_ draws a matrix. What such a function makes from numbers and shapes alone is the same on
// all ranks, so it is made as a replicated tensor of the mesh that the function works on, by the kernels of the ops
// that make tensors (zeros, arange, rand). From there on it is a distributed tensor like others: the results of other
// ops can be written into it, and random numbers are those of one device. A plain tensor that the caller gave is not
// touched, and stays an error where it meets distributed ones.
//
// Two kinds of functions have an entry where that begins: composite ops, whose kernel opens the scope, and functions of
// torch:: that are no ops (modules, nn::init), whose place ours take in the process: see nn/interposed_modules.cpp.
// Functions that are inline in LibTorch's headers are compiled into the caller's program and cannot be told from the
// caller's own code.
//
// The scope is a dispatch key on this thread, with kernels for the ops that make tensors; all other ops fall through at
// no cost. It is left whenever code of ours runs, and where an op has plain tensors only: what a plain kernel makes is
// plain. The latter needs a look at every op, which begins (with a second key) where there are plain tensors: among the
// arguments of the function, or of its own making.
//
// A number that the function was given, or made, may become a plain tensor of more elements (quantile spreads it over
// its columns): where the caller has given no such tensor, it is taken as replicated.

// The tensors that a function is called with.
struct GivenTensors {
  const Layout* model = nullptr;  // of the first distributed one, a number only if there is no other
  bool plain = false;             // whether there are plain ones, too
  bool lists = false;             // of more than one element

  void see(const at::Tensor& tensor);

 private:
  bool leads_ = false;  // the model is no number
};

class FactoryScope {
 public:
  // Without a distributed tensor it leaves things as they are.
  explicit FactoryScope(const GivenTensors& given);
  // What is made lies there, in parts where it has a size. The place outlives the scope.
  explicit FactoryScope(const FactoryLayout& place);
  ~FactoryScope();
  FactoryScope(const FactoryScope&) = delete;
  FactoryScope& operator=(const FactoryScope&) = delete;

 private:
  FactoryScope();

  const Layout* outer_;
  const FactoryLayout* outer_place_;
  c10::impl::LocalDispatchKeySet keys_;
  std::optional<PlainTensorScope> policy_;
};

// LibTorch's own code for a composite op, in that scope. The arguments are the last on the stack.
void run_composite(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// The same as a kernel on the keys of distributed tensors, for all composite ops of ATen that `is_free` lets pass:
// those that nobody else serves.
void register_composites(torch::Library& aten, torch::Library& autograd, bool (*is_free)(const c10::OperatorHandle&));

// The kernels of the scope itself.
void register_factories();

}  // namespace intarsia
