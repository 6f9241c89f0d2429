#pragma once
// Watches the backward of one forward of a module, for its backward hooks.
//
// What enters the forward and what leaves it pass two nodes of autograd that change nothing: the backward pass meets
// the second one first, with the gradients of all results, and the first one last, with those of all arguments.

#include <memory>

#include "intarsia/nn/hooks.h"

namespace intarsia {

class BackwardWatch final : public std::enable_shared_from_this<BackwardWatch> {
 public:
  BackwardWatch(torch::nn::Module& module, const std::shared_ptr<HookLists>& lists) : module_(&module), lists_(lists) {}

  // The forward begins with these, and ends with those: tensors that need a gradient are replaced by ones with the
  // node.
  static std::shared_ptr<BackwardWatch> begin(torch::nn::Module& module, const std::shared_ptr<HookLists>& lists,
                                              HookArguments& inputs);
  void end(HookArguments& outputs);

  // What the nodes meet.
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
