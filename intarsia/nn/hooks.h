#pragma once
// Forward and backward hooks for torch::nn modules, which LibTorch has only in Python.
//
//   struct MlpImpl : torch::nn::Module { at::Tensor forward(at::Tensor x); ... };
//   INTARSIA_MODULE(Mlp);  // in place of TORCH_MODULE(Mlp)
//
//   Mlp mlp;
//   auto handle = mlp->register_forward_pre_hook([](auto&, HookArguments& in) { in.tensor(0) = 2 * in.tensor(0); });
//   handle.remove();

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "intarsia/nn/hook_arguments.h"

namespace intarsia {

// Both may replace values in place. An error in a hook ends the forward and leaves all hooks as they are.
using ForwardPreHook = std::function<void(torch::nn::Module& module, HookArguments& inputs)>;
using ForwardHook = std::function<void(torch::nn::Module& module, HookArguments& inputs, HookArguments& outputs)>;
// Runs if forward, or a hook around it, ends with an error, before the error is passed on.
using ForwardErrorHook = std::function<void(torch::nn::Module& module)>;

// Gradients of the tensors among the results or the arguments, in their order; undefined if there is none. The first
// kind runs when all gradients of the results in this pass have arrived, and may replace them; the second when those of
// the arguments have, and may replace those. If no argument needs a gradient, it runs right after the first.
using Gradients = std::vector<at::Tensor>;
using BackwardPreHook = std::function<void(torch::nn::Module& module, Gradients& grad_outputs)>;
using BackwardHook =
    std::function<void(torch::nn::Module& module, Gradients& grad_inputs, const Gradients& grad_outputs)>;

struct HookLists {
  template <class Hook>
  using List = std::vector<std::pair<int64_t, std::shared_ptr<const Hook>>>;
  List<ForwardPreHook> before;
  List<ForwardHook> after;
  List<ForwardErrorHook> failed;
  List<BackwardPreHook> before_backward;
  List<BackwardHook> after_backward;
  int64_t last = 0;

  bool empty() const {
    return before.empty() && after.empty() && failed.empty() && before_backward.empty() && after_backward.empty();
  }
};

// Removes one hook. A handle may be dropped, which keeps the hook, and may outlive the module.
class HookHandle {
 public:
  HookHandle() = default;
  void remove();

 private:
  friend class ForwardHooks;
  HookHandle(const std::shared_ptr<HookLists>& lists, int64_t number) : lists_(lists), number_(number) {}
  std::weak_ptr<HookLists> lists_;
  int64_t number_ = 0;
};

// The hooks of one module. Hooks run in the order in which they were registered; if a running hook adds or removes a
// hook, that takes effect in the next forward. A copy of a module has the same hooks in a separate list.
class ForwardHooks {
 public:
  ForwardHooks() = default;
  ForwardHooks(const ForwardHooks& other) : lists_(std::make_shared<HookLists>(*other.lists_)) {}
  ForwardHooks& operator=(const ForwardHooks& other);

  // `prepend`: before the existing ones.
  HookHandle register_forward_pre_hook(ForwardPreHook hook, bool prepend = false);
  HookHandle register_forward_hook(ForwardHook hook);
  HookHandle register_forward_error_hook(ForwardErrorHook hook);
  HookHandle register_full_backward_pre_hook(BackwardPreHook hook);
  HookHandle register_full_backward_hook(BackwardHook hook);

  virtual size_t input_count() const = 0;                  // of forward
  virtual std::optional<size_t> output_count() const = 0;  // none if it is known only after running

 protected:
  ~ForwardHooks() = default;
  const HookLists& hooks() const { return *lists_; }
  void run_before(torch::nn::Module& module, HookArguments& inputs) const;
  void run_after(torch::nn::Module& module, HookArguments& inputs, HookArguments& outputs) const;
  void run_failed(torch::nn::Module& module) const;
  // Inserts the nodes of BackwardWatch into inputs and outputs of a forward; does nothing without backward hooks.
  std::shared_ptr<void> watch_inputs(torch::nn::Module& module, HookArguments& inputs) const;
  void watch_outputs(const std::shared_ptr<void>& watch, HookArguments& outputs) const;

 private:
  friend class Rollback;
  std::shared_ptr<HookLists> lists_ = std::make_shared<HookLists>();
};

// The hooks of a module, or null if it was not declared with INTARSIA_MODULE or Hooked.
ForwardHooks* hooks_of(torch::nn::Module& module);
// Gives the submodules of `to` the hooks of the submodules of `from` with the same names. LibTorch's clone() of a
// parent creates new children without hooks; a parent with hooks calls this itself.
void copy_hooks(const torch::nn::Module& from, torch::nn::Module& to);
// Like hooks_of, but raises an error that shows what to change. `what` needs the hooks, and `where` is the calling
// function.
ForwardHooks& need_hooks(torch::nn::Module& module, const char* where, const std::string& what);

// How an argument is held while hooks may replace it: by value, unless forward may write to it.
template <class A>
constexpr bool kIsWritten = std::is_lvalue_reference_v<A> && !std::is_const_v<std::remove_reference_t<A>>;
template <class A>
using HeldArgument = std::conditional_t<kIsWritten<A>, A, std::remove_cv_t<std::remove_reference_t<A>>>;

// The argument as the signature requires it. A by-value argument is copied if possible: hooks after the forward see it
// again.
template <class A, class Held>
decltype(auto) passed(Held& held) {
  constexpr bool moves = std::is_rvalue_reference_v<A> || (!std::is_reference_v<A> && !std::is_copy_constructible_v<A>);
  if constexpr (moves) {
    return std::move(held);
  } else {
    return (held);
  }
}

// Overrides forward of Base to run hooks around it.
template <class Self, class Base, class R, class... A>
class HookedForward : public Base, public ForwardHooks {
 public:
  using Base::Base;

  size_t input_count() const override { return sizeof...(A); }
  std::optional<size_t> output_count() const override { return HookArguments::count_of<R>(); }

  // Base's clone makes a Base; its contents move into a copy of this type, which has the hooks.
  std::shared_ptr<torch::nn::Module> clone(const std::optional<at::Device>& device = std::nullopt) const override {
    auto deep = Base::clone(device);
    if constexpr (std::is_copy_constructible_v<Base> && std::is_copy_assignable_v<Base>) {
      auto copy = std::make_shared<Self>(static_cast<const Self&>(*this));
      static_cast<Base&>(*copy) = dynamic_cast<Base&>(*deep);
      copy_hooks(*this, *copy);
      return copy;
    } else {
      return deep;
    }
  }

 protected:
  R run(A... args) {
    if (hooks().empty()) return Base::forward(std::forward<A>(args)...);
    std::tuple<HeldArgument<A>...> held(std::forward<A>(args)...);
    try {
      return run_hooked(held);
    } catch (...) {
      run_failed(*this);
      throw;
    }
  }

 private:
  template <class Tuple>
  R run_hooked(Tuple& held) {
    HookArguments inputs, outputs;
    std::apply([&](auto&... value) { (inputs.add_one(value), ...); }, held);
    run_before(*this, inputs);
    auto watch = watch_inputs(*this, inputs);
    if constexpr (std::is_void_v<R>) {
      call(held, std::index_sequence_for<A...>());
      run_after(*this, inputs, outputs);
    } else {
      R result = call(held, std::index_sequence_for<A...>());
      outputs.add(result);
      run_after(*this, inputs, outputs);
      watch_outputs(watch, outputs);
      return result;
    }
  }

  template <class Tuple, size_t... I>
  R call(Tuple& held, std::index_sequence<I...>) {
    return Base::forward(passed<A>(std::get<I>(held))...);
  }
};

// A module of type Base whose forward, of the same signature, runs hooks. It works wherever Base does: in Sequential,
// AnyModule, ModuleList, and under clone(). Base has one forward, which is not a template.
template <class Base, class Forward = decltype(&Base::forward)>
class Hooked;

template <class Base, class C, class R, class... A>
class Hooked<Base, R (C::*)(A...)> : public HookedForward<Hooked<Base>, Base, R, A...> {
 public:
  using HookedForward<Hooked<Base>, Base, R, A...>::HookedForward;
  R forward(A... args) { return this->run(std::forward<A>(args)...); }
};

template <class Base, class C, class R, class... A>
class Hooked<Base, R (C::*)(A...) const> : public HookedForward<Hooked<Base>, Base, R, A...> {
 public:
  using HookedForward<Hooked<Base>, Base, R, A...>::HookedForward;
  // Hooks get a module that is not const.
  R forward(A... args) const { return const_cast<Hooked*>(this)->run(std::forward<A>(args)...); }
};

}  // namespace intarsia

// Declares the holder `Name` of a module `NameImpl`, as TORCH_MODULE does, with hooks.
#define INTARSIA_MODULE(Name) TORCH_MODULE_IMPL(Name, ::intarsia::Hooked<Name##Impl>)
