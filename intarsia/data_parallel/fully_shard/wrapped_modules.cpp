#include "intarsia/data_parallel/fully_shard/wrapped_modules.h"

#include <algorithm>
#include <typeinfo>

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/module.h>

#include "intarsia/data_parallel/module_names.h"

namespace intarsia {
namespace {

// Leaves that get a gradient in this pass and are in no group.
std::vector<at::Tensor> unwatched_leaves() {
  std::vector<at::Tensor> leaves;
  auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  for (auto* node : nodes ? *nodes : std::unordered_set<torch::autograd::Node*>()) {
    if (typeid(*node) != typeid(torch::autograd::AccumulateGrad)) continue;
    auto& leaf = static_cast<torch::autograd::AccumulateGrad*>(node)->variable;
    if (leaf.defined() && !watcher_of(leaf)) leaves.push_back(leaf);
  }
  return leaves;
}

bool contains(const std::vector<at::Tensor>& tensors, const at::Tensor& tensor) {
  return std::any_of(tensors.begin(), tensors.end(), [&](auto& one) { return one.is_same(tensor); });
}

}  // namespace

void WrappedModules::add(FindLate find) {
  std::lock_guard lock(mutex_);
  finders_.push_back(std::make_shared<FindLate>(std::move(find)));
}

void WrappedModules::add(const torch::nn::Module& module) {
  std::lock_guard lock(mutex_);
  std::erase_if(modules_, [&](auto& one) { return one.module.expired() || one.module.lock().get() == &module; });
  auto parameters = module.parameters();
  modules_.push_back({WeakModule(module), {parameters.begin(), parameters.end()}});
}

bool WrappedModules::has(const torch::nn::Module& module) const {
  std::lock_guard lock(mutex_);
  return std::any_of(modules_.begin(), modules_.end(), [&](auto& one) { return one.module.lock().get() == &module; });
}

std::string WrappedModules::late_parameter() {
  auto leaves = unwatched_leaves();
  if (leaves.empty()) return "";
  std::unique_lock lock(mutex_);
  auto modules = modules_;
  auto finders = finders_;
  lock.unlock();
  for (auto& [weak, known] : modules) {
    auto module = weak.lock();
    if (!module) continue;
    for (auto& item : module->named_parameters()) {
      auto is_it = [&](auto& one) { return one.lock().is_same(item.value()); };
      if (!contains(leaves, item.value()) || std::any_of(known.begin(), known.end(), is_it)) continue;
      return c10::str("\"", item.key(), "\" of ", type_name(*module));
    }
  }
  std::string text;
  for (auto& find : finders) {
    auto late = (*find)();
    for (auto& [name, parameter] : late ? *late : std::vector<std::pair<std::string, at::Tensor>>()) {
      if (contains(leaves, parameter)) text = name;
    }
    if (late) continue;
    lock.lock();
    std::erase(finders_, find);
    lock.unlock();
  }
  return text;
}

}  // namespace intarsia
