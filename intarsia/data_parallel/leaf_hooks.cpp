#include "intarsia/data_parallel/leaf_hooks.h"

#include <algorithm>
#include <iterator>

#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace intarsia {
namespace {

namespace impl = torch::autograd::impl;
using torch::autograd::variable_list;

class AfterGradient final : public torch::autograd::FunctionPostHook {
 public:
  AfterGradient(std::shared_ptr<LeafWatcher> watcher, size_t index) : watcher_(std::move(watcher)), index_(index) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    watcher_->after_gradient(index_);
    return outputs;
  }
  bool is_of(const LeafWatcher* watcher) const { return watcher_.get() == watcher; }

 private:
  std::shared_ptr<LeafWatcher> watcher_;
  size_t index_;
};

// Stands in the leaf's list of hooks.
struct BeforeGradient {
  std::shared_ptr<LeafWatcher> watcher;
  size_t index;

  at::TensorBase operator()(const at::TensorBase& grad) const {
    auto node = torch::autograd::get_current_node();  // a leaf whose dtype changes has several in its life
    auto is_ours = [&](auto& hook) {
      auto* after = dynamic_cast<AfterGradient*>(hook.get());
      return after && after->is_of(watcher.get());
    };
    auto& hooks = node->post_hooks();
    if (std::none_of(hooks.begin(), hooks.end(), is_ours)) {
      node->add_post_hook(std::make_unique<AfterGradient>(watcher, index));
    }
    watcher->before_gradient(index, at::Tensor(grad));
    return grad;
  }
};

}  // namespace

void watch_leaf(const at::Tensor& leaf, std::shared_ptr<LeafWatcher> watcher, size_t index) {
  auto* meta = impl::materialize_autograd_meta(leaf);
  if (!meta->cpp_hooks_list_) {
    auto others = std::move(meta->hooks_);  // create_cpp_hook would drop hooks of other kinds
    meta->hooks_.clear();
    impl::create_cpp_hook(leaf);
    std::move(others.begin(), others.end(), std::back_inserter(meta->hooks_));
  }
  meta->cpp_hooks_list_->push_back(BeforeGradient{std::move(watcher), index});
}

std::shared_ptr<LeafWatcher> watcher_of(const at::Tensor& leaf) {
  auto* meta = impl::get_autograd_meta(leaf);
  if (!meta || !meta->cpp_hooks_list_) return nullptr;
  for (auto& hook : *meta->cpp_hooks_list_) {
    if (auto* ours = hook.target<BeforeGradient>()) return ours->watcher;
  }
  return nullptr;
}

}  // namespace intarsia
