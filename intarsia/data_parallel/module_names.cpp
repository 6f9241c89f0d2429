#include "intarsia/data_parallel/module_names.h"

#include <mutex>
#include <set>

#include <torch/nn/module.h>

namespace intarsia {
namespace {

void add_paths(const torch::nn::Module& module, const std::string& prefix, std::map<const void*, std::string>& paths) {
  for (auto& child : module.named_children()) {
    auto path = prefix.empty() ? child.key() : prefix + "." + child.key();
    if (paths.emplace(child.value().get(), path).second) add_paths(*child.value(), path, paths);
  }
}

}  // namespace

std::string type_name(const torch::nn::Module& module) {
  auto type = module.name();  // intarsia::Hooked<llama::BlockImpl, at::Tensor (...)>
  const std::string unnamed = "(anonymous namespace)::";
  for (auto at = type.find(unnamed); at != std::string::npos; at = type.find(unnamed)) type.erase(at, unnamed.size());
  auto hooked = type.find("Hooked<");
  if (hooked != std::string::npos) type = type.substr(hooked + 7);
  type = type.substr(0, type.find_first_of(",<>("));
  return type.substr(type.rfind(':') + 1);
}

std::map<const void*, std::string> paths_in(const torch::nn::Module& module) {
  std::map<const void*, std::string> paths;
  add_paths(module, "", paths);
  return paths;
}

const char* cause_text(const char* function, const std::string& module) {
  static auto* mutex = new std::mutex;
  static auto* texts = new std::set<std::string>;
  std::lock_guard lock(*mutex);
  return texts->insert(std::string(function) + " " + module).first->c_str();
}

}  // namespace intarsia
