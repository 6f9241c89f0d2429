#include "intarsia/nn/hooks.h"

#include <algorithm>

#include "intarsia/nn/backward_watch.h"

namespace intarsia {
namespace {

template <class List, class Hook>
void append(const char* where, List& list, int64_t number, Hook hook) {
  TORCH_CHECK_VALUE(hook, "[", where, "] the hook is empty. Give a function.");
  list.emplace_back(number, std::make_shared<const Hook>(std::move(hook)));
}

template <class List>
void drop(List& list, int64_t number) {
  list.erase(std::remove_if(list.begin(), list.end(), [&](auto& item) { return item.first == number; }), list.end());
}

}  // namespace

void HookHandle::remove() {
  if (auto lists = lists_.lock()) {
    drop(lists->before, number_), drop(lists->after, number_), drop(lists->failed, number_);
    drop(lists->before_backward, number_), drop(lists->after_backward, number_);
  }
  lists_.reset();
}

ForwardHooks& ForwardHooks::operator=(const ForwardHooks& other) {
  if (this != &other) *lists_ = *other.lists_;
  return *this;
}

HookHandle ForwardHooks::register_forward_pre_hook(ForwardPreHook hook, bool prepend) {
  TORCH_CHECK_VALUE(hook, "[register_forward_pre_hook] the hook is empty. Give a function.");
  auto& list = lists_->before;
  list.emplace(prepend ? list.begin() : list.end(), ++lists_->last,
               std::make_shared<const ForwardPreHook>(std::move(hook)));
  return {lists_, lists_->last};
}

HookHandle ForwardHooks::register_forward_hook(ForwardHook hook) {
  append("register_forward_hook", lists_->after, ++lists_->last, std::move(hook));
  return {lists_, lists_->last};
}

HookHandle ForwardHooks::register_forward_error_hook(ForwardErrorHook hook) {
  append("register_forward_error_hook", lists_->failed, ++lists_->last, std::move(hook));
  return {lists_, lists_->last};
}

HookHandle ForwardHooks::register_full_backward_pre_hook(BackwardPreHook hook) {
  append("register_full_backward_pre_hook", lists_->before_backward, ++lists_->last, std::move(hook));
  return {lists_, lists_->last};
}

HookHandle ForwardHooks::register_full_backward_hook(BackwardHook hook) {
  append("register_full_backward_hook", lists_->after_backward, ++lists_->last, std::move(hook));
  return {lists_, lists_->last};
}

// A hook may change the lists, so this runs a copy of the list.
void ForwardHooks::run_before(torch::nn::Module& module, HookArguments& inputs) const {
  auto hooks = lists_->before;
  for (auto& [number, hook] : hooks) (*hook)(module, inputs);
}

void ForwardHooks::run_after(torch::nn::Module& module, HookArguments& inputs, HookArguments& outputs) const {
  auto hooks = lists_->after;
  for (auto& [number, hook] : hooks) (*hook)(module, inputs, outputs);
}

void ForwardHooks::run_failed(torch::nn::Module& module) const {
  auto hooks = lists_->failed;
  for (auto& [number, hook] : hooks) (*hook)(module);
}

std::shared_ptr<void> ForwardHooks::watch_inputs(torch::nn::Module& module, HookArguments& inputs) const {
  bool any = !lists_->before_backward.empty() || !lists_->after_backward.empty();
  return any && at::GradMode::is_enabled() ? BackwardWatch::begin(module, lists_, inputs) : nullptr;
}

void ForwardHooks::watch_outputs(const std::shared_ptr<void>& watch, HookArguments& outputs) const {
  if (watch) std::static_pointer_cast<BackwardWatch>(watch)->end(outputs);
}

ForwardHooks* hooks_of(torch::nn::Module& module) { return dynamic_cast<ForwardHooks*>(&module); }

void copy_hooks(const torch::nn::Module& from, torch::nn::Module& to) {
  auto targets = to.named_children();
  for (auto& child : from.named_children()) {
    auto* target = targets.find(child.key());
    if (!target) continue;
    auto *theirs = hooks_of(*child.value()), *own = hooks_of(**target);
    if (theirs && own) *own = *theirs;
    copy_hooks(*child.value(), **target);
  }
}

ForwardHooks& need_hooks(torch::nn::Module& module, const char* where, const std::string& what) {
  auto* hooks = hooks_of(module);
  if (hooks) return *hooks;
  auto type = module.name();
  auto name = type.substr(type.rfind(':') + 1);
  if (name.size() > 4 && name.substr(name.size() - 4) == "Impl") name.resize(name.size() - 4);
  TORCH_CHECK_TYPE(false, "[", where, "] ", what, " runs code around the forward of ", type,
                   ", which has no hooks. Declare it with  INTARSIA_MODULE(", name, ");  in place of  TORCH_MODULE(",
                   name, ");  or use intarsia::Hooked<", type, ">.");
}

}  // namespace intarsia
