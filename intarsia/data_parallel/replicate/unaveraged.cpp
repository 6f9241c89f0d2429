#include "intarsia/data_parallel/replicate/unaveraged.h"

#include <algorithm>
#include <memory>
#include <set>

#include <torch/nn/module.h>

#include "intarsia/comm/agreement.h"
#include "intarsia/data_parallel/leaf_hooks.h"
#include "intarsia/data_parallel/step_report.h"
#include "intarsia/data_parallel/sync_module_states.h"
#include "intarsia/data_parallel/weak_module.h"
#include "intarsia/watch/waiting.h"

namespace intarsia {
namespace {

// named_parameters() copies names and tensors, which is too slow for every step.
struct Peek : torch::nn::Module {
  static auto& parameters_of(const torch::nn::Module& module) { return module.*&Peek::parameters_; }
};

// A parameter holds its watcher, so one without a watcher was never replicated, whatever address it has.
bool is_unaveraged(const at::Tensor& parameter) {
  return parameter.defined() && parameter.requires_grad() && parameter.grad().defined() && !watcher_of(parameter);
}

class Search {
 public:
  Search(torch::nn::Module& module, const std::vector<at::Tensor>& ignored_parameters,
         const std::vector<torch::nn::Module*>& ignored_modules)
      : root_(module) {
    for (auto& parameter : ignored_parameters) ignored_.emplace_back(parameter);
    for (auto* ignored : ignored_modules) {
      ignored_modules_.emplace_back(*ignored);
      for (auto& parameter : ignored->parameters()) ignored_.emplace_back(parameter);
    }
  }

  std::vector<std::string> operator()() const {
    std::vector<std::string> names;
    auto root = root_.lock();
    if (!root || !any_in(*root)) return names;
    auto skipped = ignored_now();
    for (auto& item : root->named_parameters()) {
      auto& parameter = item.value();
      if (is_unaveraged(parameter) && !skipped.count(parameter.unsafeGetTensorImpl())) names.push_back(item.key());
    }
    return names;
  }

 private:
  static bool any_in(const torch::nn::Module& root) {
    bool found = false;
    root.apply([&](const torch::nn::Module& module) {
      for (auto& item : Peek::parameters_of(module)) found = found || is_unaveraged(item.value());
    });
    return found;
  }

  // Weak references keep addresses from being reused. An ignored module may have got parameters since.
  std::set<const c10::TensorImpl*> ignored_now() const {
    std::set<const c10::TensorImpl*> addresses;
    auto add = [&](const at::Tensor& tensor) {
      if (tensor.defined()) addresses.insert(tensor.unsafeGetTensorImpl());
    };
    for (auto& parameter : ignored_) add(parameter.lock());
    for (auto& weak : ignored_modules_) {
      if (auto module = weak.lock()) {
        for (auto& parameter : module->parameters()) add(parameter);
      }
    }
    return addresses;
  }

  WeakModule root_;
  std::vector<WeakTensor> ignored_;
  std::vector<WeakModule> ignored_modules_;
};

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 8; ++i) text += (i ? ", " : "") + names[i];
  return names.size() > 8 ? text + " and " + std::to_string(names.size() - 8) + " more" : text;
}

}  // namespace

FindUnaveraged unaveraged_in(torch::nn::Module& module, const std::vector<at::Tensor>& ignored_parameters,
                             const std::vector<torch::nn::Module*>& ignored_modules) {
  return [search = std::make_shared<Search>(module, ignored_parameters, ignored_modules)] { return (*search)(); };
}

void raise_unaveraged(const char* where, const std::string& module, const Axis& axis,
                      const std::vector<std::string>& names) {
  auto texts = exchange_texts(axis, joined(names));
  auto first = std::find_if(texts.begin(), texts.end(), [](auto& text) { return !text.empty(); });
  TORCH_INTERNAL_ASSERT(first != texts.end());
  std::vector<int64_t> ranks;
  for (int64_t j = 0; j < axis.size(); ++j) {
    if (texts[j] == *first) ranks.push_back(axis.line().ranks[0][j]);
  }
  TORCH_CHECK(false, "[", where, "] ", *first, " of ", module, " got a gradient on ", names_of_ranks(ranks),
              " that is not averaged: the parameter was registered after ", where,
              " was called. Register all parameters ", "first, or call ", where,
              " again, which takes those that it does not have yet.");
}

}  // namespace intarsia
