#pragma once
// Watches the backward of one forward of a module, for its backward hooks.
//
// The tensors that enter the forward and those that leave it pass through two autograd nodes that change nothing: the
// backward pass reaches the second node first, with the gradients of all results, and the first node last, with those
// of all arguments.

#include <memory>

#include "intarsia/nn/hooks.h"

namespace intarsia {

class BackwardWatch final : public std::enable_shared_from_this<BackwardWatch> {
 public:
  BackwardWatch(torch::nn::Module& module, const std::shared_ptr<HookLists>& lists) : module_(&module), lists_(lists) {}

  // begin is called with the arguments of the forward, end with its results: tensors that need a gradient are replaced
  // by ones that have the node.
  static std::shared_ptr<BackwardWatch> begin(torch::nn::Module& module, const std::shared_ptr<HookLists>& lists,
                                              HookArguments& inputs);
  void end(HookArguments& outputs);

  // Called by the nodes.
  Gradients results_came(Gradients grad_outputs);
  Gradients arguments_came(Gradients grad_inputs);

 private:
  torch::nn::Module* module_;
  std::weak_ptr<HookLists> lists_;  // gone with the module
  size_t input_count_ = 0;
  bool has_inputs_ = false;  // with a gradient
  Gradients grad_outputs_;
};

}  // namespace intarsia
