#pragma once
// The modules that fully_shard was called on: parameters that came to them later are found here.

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/data_parallel/leaf_hooks.h"
#include "intarsia/data_parallel/weak_module.h"

namespace torch::nn {
class Module;
}

namespace intarsia {

class WrappedModules {
 public:
  void add(const torch::nn::Module& module);
  // For a module that is not LibTorch's, such as Python's: its parameters that were registered later, by name; none
  // once it has gone.
  using FindLate = std::function<std::optional<std::vector<std::pair<std::string, at::Tensor>>>()>;
  void add(FindLate find);
  // Whether the module was given to add.
  bool has(const torch::nn::Module& module) const;

  // In a backward pass, or at its end: a text that names a parameter of one of the modules which gets a gradient in
  // this pass without being reduced; empty if there is none.
  std::string late_parameter();

 private:
  struct Wrapped {
    WeakModule module;
    std::vector<WeakTensor> known;  // its parameters at that time: ignored ones are not late, either
  };
  mutable std::mutex mutex_;  // other threads may ask whether a module was given; held for no call of the program's
  std::vector<Wrapped> modules_;
  std::vector<std::shared_ptr<FindLate>> finders_;
};

}  // namespace intarsia
