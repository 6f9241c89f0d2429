#pragma once
// Makes the tensors that LibTorch's code creates while it works on distributed tensors distributed as well.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "intarsia/core/layout.h"
#include "intarsia/dispatch/factory_layout.h"
#include "intarsia/tensor/policy.h"

namespace intarsia {

// Note [Factories]
// Many functions of LibTorch create tensors internally: pad_sequence fills one and writes the sequences into it, vander
// begins with ones, orthogonal_ draws a matrix. What such a function creates from numbers and shapes alone is the same
// on all ranks, so the kernels of factory ops (zeros, arange, rand) create it as a replicated tensor on the mesh of the
// function's arguments. From there on it is a distributed tensor like others: the results of other ops can be written
// into it, and random numbers are those of one device. A plain tensor that the caller gave is not touched, and stays an
// error where it meets distributed ones.
//
// Two kinds of functions have an entry where that begins: composite ops, whose kernel opens the scope, and functions of
// torch:: that are not ops (modules, nn::init), which ours replace in the process: see nn/interposed_modules.cpp.
// Functions that are inline in LibTorch's headers are compiled into the caller's program and cannot be told from the
// caller's code.
//
// The scope is a dispatch key on this thread, with kernels for the factory ops; all other ops fall through at no cost.
// The scope is left whenever our code runs, and for an op that has plain tensors only: what a plain kernel creates is
// plain. The latter needs a look at every op, which begins (with a second key) where there are plain tensors: among the
// arguments of the function, or created by it.
//
// A number that the function was given, or created, may become a plain tensor of more elements (quantile spreads it
// over its columns): if the caller has given no such tensor, it is taken as replicated.

// The tensors among the arguments of a function.
struct GivenTensors {
  const Layout* model = nullptr;  // of the first distributed one; of a number only if there is no other
  bool plain = false;             // whether there are plain ones as well
  bool lists = false;             // of more than one element

  void see(const at::Tensor& tensor);

 private:
  bool leads_ = false;  // the model is not a number
};

class FactoryScope {
 public:
  // Does nothing without a distributed tensor.
  explicit FactoryScope(const GivenTensors& given);
  // New tensors get this layout, in parts if they have a size. `place` must outlive the scope.
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

// Runs LibTorch's kernel of a composite op inside the scope. The arguments are the last on the stack.
void run_composite(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Registers that as a kernel on the keys of distributed tensors, for all composite ops of ATen that `is_free` lets
// pass: those that have no other kernel of ours.
void register_composites(torch::Library& aten, torch::Library& autograd, bool (*is_free)(const c10::OperatorHandle&));

// Registers the kernels of the scope itself.
void register_factories();

}  // namespace intarsia
