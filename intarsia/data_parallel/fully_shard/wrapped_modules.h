#pragma once
// The modules on which fully_shard was called, if a shared pointer owns them: finds parameters that were registered in
// them later.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/data_parallel/leaf_hooks.h"

namespace torch::nn {
class Module;
}

namespace intarsia {

class WrappedModules {
 public:
  // A module that no shared pointer owns is not kept: nothing would report its end.
  void add(const torch::nn::Module& module);
  // For a module that is not LibTorch's, such as Python's: its parameters that were registered later, by name; none
  // once it has gone.
  using FindLate = std::function<std::optional<std::vector<std::pair<std::string, at::Tensor>>>()>;
  void add(FindLate find) { finders_.push_back(std::move(find)); }
  // Whether the module was given to add.
  bool has(const torch::nn::Module& module) const;

  // In a backward pass, or at its end: a text that names a parameter of one of the modules which gets a gradient in
  // this pass without being reduced; empty if there is none.
  std::string late_parameter();

 private:
  struct Wrapped {
    std::weak_ptr<const torch::nn::Module> module;
    std::vector<WeakTensor> known;  // its parameters at that time, including ignored ones
  };
  std::string late_parameter_of_finders(const std::vector<at::Tensor>& leaves);

  std::vector<Wrapped> modules_;
  std::vector<FindLate> finders_;
};

}  // namespace intarsia
