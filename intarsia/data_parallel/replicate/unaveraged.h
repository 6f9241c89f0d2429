#pragma once
// Parameters of a replicated module whose gradients are not averaged, because they were registered after the call of
// replicate.

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/comm/axis.h"

namespace torch::nn {
class Module;
}

namespace intarsia {

// Their names, at the time of the call.
using FindUnaveraged = std::function<std::vector<std::string>()>;

// Looks for parameters that have a gradient and no watcher, in the module and in what is registered in it by then, as
// long as it lives.
FindUnaveraged unaveraged_in(torch::nn::Module& module, const std::vector<at::Tensor>& ignored_parameters,
                             const std::vector<torch::nn::Module*>& ignored_modules);

// Raises the error of `where`, the same on all ranks of our line. All of them call it, with the names that they have;
// at least one has some.
[[noreturn]] void raise_unaveraged(const char* where, const std::string& module, const Axis& axis,
                                   const std::vector<std::string>& names);

}  // namespace intarsia
