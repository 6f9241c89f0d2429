#pragma once
// Modules as text, for errors and listings.

#include <map>
#include <string>

namespace torch::nn {
class Module;
}

namespace intarsia {

// The type, without namespaces and hooks: LinearImpl.
std::string type_name(const torch::nn::Module& module);

// The paths of all submodules: layers.0, layers.0.mlp. The module itself has none.
std::map<const void*, std::string> paths_in(const torch::nn::Module& module);

}  // namespace intarsia
