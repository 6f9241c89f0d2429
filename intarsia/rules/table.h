#pragma once
// What is known of every op, by name: its rule, its lowering, its traits, kernels that stand above dispatch.

#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "intarsia/libtorch/dispatch_keys.h"
#include "intarsia/rules/advised.h"
#include "intarsia/rules/lowering.h"
#include "intarsia/rules/rule.h"
#include "intarsia/rules/traits.h"

namespace intarsia {

// A kernel of ours, outside of LibTorch's own code that called it: see Note [Factories].
template <class Function>
struct Ours;
template <class Result, class... Args>
struct Ours<Result (*)(Args...)> {
  Result (*function)(Args...);
  Result operator()(Args... args) {
    c10::impl::ExcludeDispatchKeyGuard guard(kFactoryKeys);
    return function(std::forward<Args>(args)...);
  }
};
// The same for one of two functions, the second where a guide decides about layouts.
template <class Function>
struct OneOfOurs;
template <class Result, class... Args>
struct OneOfOurs<Result (*)(Args...)> {
  Result (*function)(Args...);
  Result (*if_advised)(Args...);
  Result operator()(Args... args) {
    c10::impl::ExcludeDispatchKeyGuard guard(kFactoryKeys);
    return (is_guided() ? if_advised : function)(std::forward<Args>(args)...);
  }
};
template <class Function>
void add_ours(torch::Library& library, const char* name, Function function, Function if_advised) {
  if (if_advised) {
    library.impl(name, OneOfOurs<Function>{function, if_advised});
  } else {
    library.impl(name, Ours<Function>{function});
  }
}
using BoxedKernel = void (*)(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*);
template <BoxedKernel function>
void run_ours(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard guard(kFactoryKeys);
  function(op, keys, stack);
}

// A lowering that serves every call of an op, and the one that serves where a guide decides about layouts.
struct Always {
  Lowering lowering, if_advised;
};

// The versions of LibTorch 2 that have an op: 2.`since` is the first, 2.`until` the last. The default is all of them.
struct Versions {
  int since = 0;
  int until = 99;
};
bool has_this_libtorch(const Versions& versions);

// Ops are named as in "aten::add.Tensor", or "aten::mm" for an overload without a name. A name that LibTorch does not
// know is an error, and so is a second entry for one op.
class RuleTable {
 public:
  void add(const std::string& op, Rule rule);
  void add(std::initializer_list<const char*> ops, const Rule& rule);
  // The same for an op that some versions lack. It is an error if LibTorch has it in none or more than `versions` say.
  void add(const std::string& op, Rule rule, const Versions& versions);
  // Puts a rule in place of whatever was known of the op: its rows serve in all cases.
  void replace(const std::string& op, Rule rule);

  // Where rows do not suffice: see lowering.h.
  void lower(const std::string& op, Planner planner);
  // The same for an op whose rows never serve: nothing has to be decided. The second, if there is one, serves where a
  // guide decides about layouts (propagate/guide.h), which is not asked about what it does.
  void always(const std::string& op, Lowering lowering, Lowering if_advised = {});

  // A kernel that stands above dispatch and brings its gradient with it: on the autograd key. The second, if there is
  // one, serves where a guide decides about layouts.
  template <class Function>
  void gradient(const std::string& op, Function function, Function if_advised = {}) {
    register_later(op, false,
                   [=](torch::Library& library, const char* name) { add_ours(library, name, function, if_advised); });
  }
  // A function that is made of differentiable ops on distributed tensors, in place of LibTorch's own.
  template <class Function>
  void composite(const std::string& op, Function function, Function if_advised = {}) {
    register_later(op, true,
                   [=](torch::Library& library, const char* name) { add_ours(library, name, function, if_advised); });
  }
  // The same for a function that takes its arguments boxed.
  template <auto* function>
  void composite_boxed(const std::string& op) {
    register_later(op, true, [](torch::Library& library, const char* name) {
      library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_ours<function>>());
    });
  }
  // Like `gradient`, for a kernel that is made when it is registered.
  void gradient_kernel(const std::string& op, std::function<torch::CppFunction()> make) {
    register_later(op, false,
                   [make = std::move(make)](torch::Library& library, const char* name) { library.impl(name, make()); });
  }
  // A kernel in the place of the one that dispatch would have.
  template <class Function>
  void kernel(const std::string& op, Function function) {
    kernels_.insert(op);
    brought_.insert(op);
    later_.push_back([name = op.substr(op.find("::") + 2), function](torch::Library& aten, torch::Library&) {
      aten.impl(name.c_str(), function);
    });
  }
  // A kernel on the autograd key of tensors that are one per simulated rank.
  template <class Function>
  void per_rank_gradient(const std::string& op, Function function) {
    per_rank_.push_back([name = op.substr(op.find("::") + 2), function](torch::Library& autograd) {
      autograd.impl(name.c_str(), function);
    });
  }
  // A composite op of LibTorch that is one op here: it has a rule, and is not taken apart.
  void stays_whole(const std::string& op) { whole_.insert(op); }

  // The rule for an op: its own, or that of the functional op it is an in-place or out= variant of.
  // Null if there is none.
  const Rule* find(const c10::OperatorName& op) const;
  const Planner* find_planner(const c10::OperatorName& op) const;
  const Always* find_lowering(const c10::OperatorName& op) const;
  bool is_composite(const std::string& op) const { return composites_.count(op) > 0; }
  bool brings_kernel(const std::string& op) const {
    return brought_.count(op) > 0;
  }  // by composite, gradient and their like
  bool stays_whole(const c10::OperatorName& op) const { return whole_.count(c10::toString(op)) > 0; }
  const std::map<std::string, Rule>& rules() const { return rules_; }
  bool has_kernel(const std::string& op) const { return kernels_.count(op) > 0; }
  bool has_lowering(const std::string& op) const { return planners_.count(op) || lowerings_.count(op); }
  std::vector<std::string> lowered_ops() const;  // those with a planner or a lowering, by name

  // What a family says of an op besides: to be filled in, for all overloads, named as in "aten::add".
  Traits& traits(const std::string& op);
  void traits(std::initializer_list<const char*> ops, const std::function<void(Traits&)>& set);
  const Traits& traits_of(const c10::OperatorName& op) const;  // those that nobody has set are false and empty

  // Composite ops that make nothing: they check their arguments and hand them to one op, and are called in every
  // training step.
  void hands_on(std::initializer_list<const char*> ops) {
    traits(ops, [](Traits& traits) { traits.hands_on = true; });
  }

  // A formula of autograd, by the name of its node, that makes the places which it hands to an op: they are the same on
  // all ranks.
  void formula_makes_places(std::initializer_list<const char*> nodes) {
    formulas_.insert(formulas_.end(), nodes.begin(), nodes.end());
  }
  bool makes_places(const std::string& node) const;

  void register_kernels(torch::Library& aten, torch::Library& aten_autograd) const;
  void register_per_rank_kernels(torch::Library& autograd) const;

 private:
  using Register = std::function<void(torch::Library&, const char* name)>;
  void register_later(const std::string& op, bool composite, Register add);

  std::map<std::string, Rule> rules_;
  std::map<std::string, Planner> planners_;
  std::map<std::string, Always> lowerings_;
  std::unordered_map<std::string, Traits> traits_;
  std::vector<std::string> formulas_;
  std::set<std::string> whole_, composites_, brought_, kernels_;
  std::vector<std::function<void(torch::Library& aten, torch::Library& autograd)>> later_;
  std::vector<std::function<void(torch::Library& autograd)>> per_rank_;
};

// All of it; made on first use. A rule of one's own is added here before the op is first called; for an op of ATen,
// before the first distributed tensor is made.
RuleTable& rule_table();

// The op whose rule serves one element of the lists of a foreach op: aten::add.Tensor for aten::_foreach_add.List.
// Empty if `op` is none, or if no op of single tensors is like it.
std::string foreach_base_of(const c10::OperatorName& op);
bool is_foreach(const c10::OperatorName& op);

// The op whose rule serves `op`: add_.Tensor and add.out are served by add.Tensor. Empty if `op` is no variant.
std::string base_op_of(const c10::OperatorName& op);

// view_copy and the like get the rules of the views that they copy. To be called when those are there.
void add_copy_rules(RuleTable& table);

}  // namespace intarsia
