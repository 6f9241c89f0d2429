#pragma once
// The rule table: what is known of every op, by name. Rules, lowerings, traits, and kernels that run above dispatch.

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

// Runs a kernel of ours without the factory keys, which are for LibTorch's code that called it: see Note [Factories].
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
// The same for one of two functions: the second runs where a guide decides about layouts.
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

// A lowering that serves every call of an op, and the one that replaces it where a guide decides about layouts.
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
// know and a second entry for an op are errors.
class RuleTable {
 public:
  // Adds the rule of an op, or of several.
  void add(const std::string& op, Rule rule);
  void add(std::initializer_list<const char*> ops, const Rule& rule);
  // The same for an op that some versions lack. It is an error if LibTorch has it in none or more than `versions` say.
  void add(const std::string& op, Rule rule, const Versions& versions);
  // Puts a rule in place of whatever was known of the op: its rows serve in all cases.
  void replace(const std::string& op, Rule rule);

  // Adds the planner of an op whose rows do not suffice: see lowering.h.
  void lower(const std::string& op, Planner planner);
  // Adds a lowering for an op whose rows never apply, so that nothing has to be decided. The second, if there is one,
  // serves where a guide decides about layouts (propagate/guide.h); the guide is not asked about what it does.
  void always(const std::string& op, Lowering lowering, Lowering if_advised = {});

  // Adds a kernel on the autograd key: it runs above dispatch and comes with its gradient. The second, if there is one,
  // serves where a guide decides about layouts.
  template <class Function>
  void gradient(const std::string& op, Function function, Function if_advised = {}) {
    register_later(op, false,
                   [=](torch::Library& library, const char* name) { add_ours(library, name, function, if_advised); });
  }
  // Adds a function made of differentiable ops on distributed tensors, in place of LibTorch's.
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
  // Adds a kernel in place of the one that dispatch would use.
  template <class Function>
  void kernel(const std::string& op, Function function) {
    kernels_.insert(op);
    brought_.insert(op);
    later_.push_back([name = op.substr(op.find("::") + 2), function](torch::Library& aten, torch::Library&) {
      aten.impl(name.c_str(), function);
    });
  }
  // Adds a kernel on the autograd key of per-rank tensors.
  template <class Function>
  void per_rank_gradient(const std::string& op, Function function) {
    per_rank_.push_back([name = op.substr(op.find("::") + 2), function](torch::Library& autograd) {
      autograd.impl(name.c_str(), function);
    });
  }
  // Declares that a composite op of LibTorch is one op here: it has a rule, and is not decomposed.
  void stays_whole(const std::string& op) { whole_.insert(op); }

  // The rule for an op: its own, or that of the functional op whose in-place or out= variant it is. Null if there is
  // none.
  const Rule* find(const c10::OperatorName& op) const;
  const Planner* find_planner(const c10::OperatorName& op) const;
  const Always* find_lowering(const c10::OperatorName& op) const;
  bool is_composite(const std::string& op) const { return composites_.count(op) > 0; }
  bool brings_kernel(const std::string& op) const {
    return brought_.count(op) > 0;
  }  // by composite, gradient and the like
  bool stays_whole(const c10::OperatorName& op) const { return whole_.count(c10::toString(op)) > 0; }
  const std::map<std::string, Rule>& rules() const { return rules_; }
  bool has_kernel(const std::string& op) const { return kernels_.count(op) > 0; }
  bool has_lowering(const std::string& op) const { return planners_.count(op) || lowerings_.count(op); }
  std::vector<std::string> lowered_ops() const;  // those with a planner or a lowering, by name

  // The further traits of an op, for its family to set. They hold for all overloads; ops are named as in "aten::add".
  Traits& traits(const std::string& op);
  void traits(std::initializer_list<const char*> ops, const std::function<void(Traits&)>& set);
  const Traits& traits_of(const c10::OperatorName& op) const;  // traits that nobody has set are false and empty

  // Declares composite ops that create no tensors: they check their arguments and pass them to one op. Every training
  // step calls them.
  void hands_on(std::initializer_list<const char*> ops) {
    traits(ops, [](Traits& traits) { traits.hands_on = true; });
  }

  // Declares autograd nodes, by name, whose formulas create the index tensors that they pass to an op: these are the
  // same on all ranks.
  void formula_makes_places(std::initializer_list<const char*> nodes) {
    formulas_.insert(formulas_.end(), nodes.begin(), nodes.end());
  }
  bool makes_places(const std::string& node) const;

  // Register the kernels that families have added, for distributed and for per-rank tensors.
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

// The table; made on first use. Add a custom rule before the op is first called; for an op of ATen, before the first
// distributed tensor is made.
RuleTable& rule_table();

// The op whose rule serves one element of the lists of a foreach op: aten::add.Tensor for aten::_foreach_add.List.
// Empty if `op` is no foreach op, or no op of single tensors corresponds to it.
std::string foreach_base_of(const c10::OperatorName& op);
bool is_foreach(const c10::OperatorName& op);

// The op whose rule serves `op`: add_.Tensor and add.out are served by add.Tensor. Empty if `op` is not a variant.
std::string base_op_of(const c10::OperatorName& op);

// Gives view_copy and the like the rules of the views that they copy. Call it when those rules are in the table.
void add_copy_rules(RuleTable& table);

}  // namespace intarsia
