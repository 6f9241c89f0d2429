#include "intarsia/data_parallel/leaf_hooks.h"

#include <algorithm>
#include <iterator>
#include <typeinfo>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "intarsia/libtorch/dispatch_keys.h"

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

// torch::autograd::grad requests the gradient of a leaf and adds it to nothing: the node is reached, but does not run.
bool will_add_up(torch::autograd::Node* node) {
  auto* needed = torch::autograd::get_current_graph_task_exec_info();
  if (!needed || needed->empty()) return true;
  auto found = needed->find(node);
  return found != needed->end() && found->second.needed_;
}

// An entry in the leaf's list of hooks.
struct BeforeGradient {
  std::shared_ptr<LeafWatcher> watcher;
  size_t index;

  at::TensorBase operator()(const at::TensorBase& grad) const {
    auto node = torch::autograd::get_current_node();  // a leaf whose dtype changes has several over time
    if (!will_add_up(node.get())) return grad;
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

// --- hooks of the program, which run later than autograd would run them

using CppHook = std::function<at::TensorBase(const at::TensorBase&)>;

struct HeldCppHook {
  CppHook hook;
  at::TensorBase operator()(const at::TensorBase& grad) const { return grad; }
};

class HeldTensorHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit HeldTensorHook(std::unique_ptr<FunctionPreHook> hook) : hook_(std::move(hook)) {}
  variable_list operator()(const variable_list& grads) override { return grads; }
  variable_list run(const variable_list& grads) const { return (*hook_)(grads); }
  std::unique_ptr<FunctionPreHook> release() { return std::move(hook_); }

 private:
  std::unique_ptr<FunctionPreHook> hook_;
};

class HeldPostAccumulateHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit HeldPostAccumulateHook(std::unique_ptr<PostAccumulateGradHook> hook) : hook_(std::move(hook)) {}
  void operator()(const torch::autograd::Variable&) override {}
  void run(const at::Tensor& leaf) const { (*hook_)(leaf); }
  std::unique_ptr<PostAccumulateGradHook> release() { return std::move(hook_); }

 private:
  std::unique_ptr<PostAccumulateGradHook> hook_;
};

// The type of the entry that runs all C++ hooks. LibTorch does not export it, so this asks a tensor with such a hook.
const std::type_info& type_of_cpp_hooks() {
  c10::InferenceMode no_inference(false);
  c10::impl::ExcludeDispatchKeyGuard plain(kFactoryKeys);
  auto probe = at::empty({0}).requires_grad_();
  probe.register_hook([](const at::Tensor& grad) { return grad; });
  auto& hook = *impl::get_autograd_meta(probe)->hooks_.at(0);
  return typeid(hook);
}

bool runs_cpp_hooks(const torch::autograd::FunctionPreHook& hook) {
  static const auto& type = type_of_cpp_hooks();
  return typeid(hook) == type;
}

thread_local bool in_hook_ = false;
struct HookScope {
  bool outer = std::exchange(in_hook_, true);
  ~HookScope() { in_hook_ = outer; }
};

void hold_tensor_hooks(torch::autograd::AutogradMeta& meta) {
  for (auto& hook : meta.hooks_) {
    if (!runs_cpp_hooks(*hook) && !dynamic_cast<HeldTensorHook*>(hook.get()))
      hook = std::make_unique<HeldTensorHook>(std::move(hook));
  }
  if (!meta.cpp_hooks_list_) return;
  for (auto& hook : *meta.cpp_hooks_list_) {
    if (!hook || hook.target<BeforeGradient>() || hook.target<HeldCppHook>()) continue;
    hook = HeldCppHook{std::move(hook)};
  }
}

}  // namespace

void check_has_no_graph(const char* where, const std::string& name, const at::Tensor& grad) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !grad.requires_grad(), "[", where, "] the gradient of \"", name, "\" is to have a graph of its own ",
      "(create_graph), which is lost when the ranks bring it together. Use torch::autograd::grad, which ",
      "gives the gradient of this rank's loss, and call backward on what you make of it.");
}

bool is_in_hook_of_program() { return in_hook_; }
bool is_in_backward() { return torch::autograd::get_current_graph_task_id() >= 0 && !in_hook_; }

void hold_hooks(const at::Tensor& leaf, bool tensor_hooks) {
  auto* meta = impl::get_autograd_meta(leaf);
  if (!meta) return;
  if (tensor_hooks) hold_tensor_hooks(*meta);
  auto& post = meta->post_acc_grad_hooks_;
  if (post && !dynamic_cast<HeldPostAccumulateHook*>(post.get()))
    post = std::make_unique<HeldPostAccumulateHook>(std::move(post));
}

at::Tensor after_tensor_hooks(const at::Tensor& leaf, at::Tensor grad) {
  auto* meta = impl::get_autograd_meta(leaf);
  if (!meta) return grad;
  HookScope scope;
  auto take = [&](const at::Tensor& result) {
    if (result.defined()) grad = result;
  };
  for (auto& hook : meta->hooks_) {
    if (auto* held = dynamic_cast<HeldTensorHook*>(hook.get())) take(held->run({grad}).at(0));
  }
  for (size_t i = 0; meta->cpp_hooks_list_ && i < meta->cpp_hooks_list_->size(); ++i) {
    auto* held = (*meta->cpp_hooks_list_)[i].target<HeldCppHook>();
    if (held) take(at::Tensor(CppHook(held->hook)(grad)));  // a copy: it may remove itself
  }
  return grad;
}

void run_post_accumulate_hooks(const at::Tensor& leaf) {
  auto* meta = impl::get_autograd_meta(leaf);
  auto* held = meta ? dynamic_cast<HeldPostAccumulateHook*>(meta->post_acc_grad_hooks_.get()) : nullptr;
  HookScope scope;
  if (held) held->run(leaf);
}

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

void unwatch_leaf(const at::Tensor& leaf) {
  auto* meta = impl::get_autograd_meta(leaf);
  if (!meta) return;
  for (auto& hook : meta->hooks_) {
    if (auto* held = dynamic_cast<HeldTensorHook*>(hook.get())) hook = held->release();
  }
  for (size_t i = 0; meta->cpp_hooks_list_ && i < meta->cpp_hooks_list_->size(); ++i) {
    auto& hook = (*meta->cpp_hooks_list_)[i];
    if (hook.target<BeforeGradient>()) hook = nullptr;  // like removed hooks: the others keep their numbers
    if (auto* held = hook.target<HeldCppHook>()) hook = CppHook(held->hook);
  }
  if (auto* held = dynamic_cast<HeldPostAccumulateHook*>(meta->post_acc_grad_hooks_.get()))
    meta->post_acc_grad_hooks_ = held->release();
}

Watched watched(const at::Tensor& leaf) {
  auto* meta = impl::get_autograd_meta(leaf);
  if (!meta || !meta->cpp_hooks_list_) return {};
  for (auto& hook : *meta->cpp_hooks_list_) {
    if (auto* ours = hook.target<BeforeGradient>()) return {ours->watcher, ours->index};
  }
  return {};
}

std::shared_ptr<LeafWatcher> watcher_of(const at::Tensor& leaf) { return watched(leaf).watcher; }

}  // namespace intarsia
