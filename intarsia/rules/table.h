#pragma once
// What is known of every op, by name: its rule, its way along a cut, kernels that stand above dispatch.

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "intarsia/libtorch/dispatch_keys.h"
#include "intarsia/rules/along.h"
#include "intarsia/rules/rule.h"

namespace intarsia {

// A kernel of ours, outside of LibTorch's own code that called it: see Note [Tensors made from nothing].
template <class Function>
struct Ours;
template <class Result, class... Args>
struct Ours<Result (*)(Args...)> {
  Result (*function)(Args...);
  Result operator()(Args... args) {
    c10::impl::ExcludeDispatchKeyGuard guard(kFromNothingKeys);
    return function(std::forward<Args>(args)...);
  }
};
using BoxedKernel = void (*)(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*);
template <BoxedKernel function>
void run_ours(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard guard(kFromNothingKeys);
  function(op, keys, stack);
}

// Ops are named as in "aten::add.Tensor", or "aten::mm" for an overload without a name. A name that LibTorch does not know
// is an error, and so is a second entry for one op.
class RuleTable {
 public:
  void add(const std::string& op, Rule rule);
  void add(std::initializer_list<const char*> ops, const Rule& rule);
  // Puts a rule in place of whatever was known of the op: its rows serve in all cases.
  void replace(const std::string& op, Rule rule);

  // Where rows do not suffice: see along.h.
  void along(const std::string& op, Planner planner);
  // The same for an op whose rows never serve: nothing has to be decided.
  void always(const std::string& op, Way way);

  // A kernel that stands above dispatch and brings its gradient with it: on the autograd key.
  template <class Function>
  void gradient(const std::string& op, Function function) {
    register_later(op, false, [=](torch::Library& library, const char* name) { library.impl(name, Ours<Function>{function}); });
  }
  // A function that is made of differentiable ops on distributed tensors, in place of LibTorch's own.
  template <class Function>
  void composite(const std::string& op, Function function) {
    register_later(op, true, [=](torch::Library& library, const char* name) { library.impl(name, Ours<Function>{function}); });
  }
  // The same for functions that take their arguments boxed.
  template <auto* function>
  void gradient_boxed(const std::string& op) {
    register_later(op, false, [](torch::Library& library, const char* name) {
      library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_ours<function>>());
    });
  }
  // The same for a kernel that is made when it is registered.
  void gradient_kernel(const std::string& op, std::function<torch::CppFunction()> make) {
    register_later(op, false, [make = std::move(make)](torch::Library& library, const char* name) { library.impl(name, make()); });
  }
  template <auto* function>
  void composite_boxed(const std::string& op) {
    register_later(op, true, [](torch::Library& library, const char* name) {
      library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_ours<function>>());
    });
  }
  // A composite op of LibTorch that is one op here: it has a rule, and is not taken apart.
  void stays_whole(const std::string& op) { whole_.insert(op); }

  // The rule for an op: its own, or that of the functional op it is an in-place or out= variant of.
  // Null if there is none.
  const Rule* find(const c10::OperatorName& op) const;
  const Planner* find_planner(const c10::OperatorName& op) const;
  const Way* find_way(const c10::OperatorName& op) const;
  bool is_composite(const std::string& op) const { return composites_.count(op) > 0; }
  bool brings_kernel(const std::string& op) const { return brought_.count(op) > 0; }  // by composite, gradient and their like
  bool stays_whole(const c10::OperatorName& op) const { return whole_.count(c10::toString(op)) > 0; }
  const std::map<std::string, Rule>& rules() const { return rules_; }
  bool has_way(const std::string& op) const { return planners_.count(op) || ways_.count(op); }
  std::vector<std::string> ops_along() const;  // those with a planner or a way, by name

  void register_kernels(torch::Library& aten, torch::Library& aten_autograd) const;

 private:
  using Register = std::function<void(torch::Library&, const char* name)>;
  void register_later(const std::string& op, bool composite, Register add);

  std::map<std::string, Rule> rules_;
  std::map<std::string, Planner> planners_;
  std::map<std::string, Way> ways_;
  std::set<std::string> whole_, composites_, brought_;
  std::vector<std::function<void(torch::Library& aten, torch::Library& autograd)>> kernels_;
};

// All of it; made on first use. A rule of one's own is added here before the op is first called; for an op of ATen, before
// the first distributed tensor is made.
RuleTable& rule_table();

// The op whose rule serves one element of the lists of a foreach op: aten::add.Tensor for aten::_foreach_add.List.
// Empty if `op` is none, or if no op of single tensors is like it.
std::string foreach_base_of(const c10::OperatorName& op);

// The op whose rule serves `op`: add_.Tensor and add.out are served by add.Tensor. Empty if `op` is no variant.
std::string base_op_of(const c10::OperatorName& op);

// view_copy and the like get the rules of the views that they copy. To be called when those are there.
void add_copy_rules(RuleTable& table);

}  // namespace intarsia
