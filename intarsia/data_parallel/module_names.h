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

// "fully_shard layers.0", as the cause of a collective: the text lives until the process ends.
const char* cause_text(const char* function, const std::string& module);

}  // namespace intarsia
