#pragma once
// The modules that fully_shard was called on, as far as somebody owns them: parameters that came to them later are
// found here.

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/data_parallel/leaf_hooks.h"

namespace torch::nn {
class Module;
}

namespace intarsia {

class WrappedModules {
 public:
  // A module that no shared pointer owns is not kept: nobody would say when it goes.
  void add(const torch::nn::Module& module);
  // Whether the module was given to add.
  bool has(const torch::nn::Module& module) const;

  // In a backward pass, or at its end: a text that names a parameter of one of the modules which gets a gradient in
  // this pass and which nobody reduces; empty if there is none.
  std::string late_parameter();

 private:
  struct Wrapped {
    std::weak_ptr<const torch::nn::Module> module;
    std::vector<WeakTensor> known;  // its parameters at that time: ignored ones are not late, either
  };
  std::vector<Wrapped> modules_;
};

}  // namespace intarsia
