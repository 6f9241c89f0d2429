#include "intarsia/checkpoint/optimizers.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "intarsia/tensor/at_rest.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia::checkpoint {
namespace {

using namespace torch::optim;

constexpr int64_t kLongestList = 1'000'000;

// Visits the fields of a state or of options, each by its name. `v` has an overload for every type of field.
template <class V>
void visit_fields(SGDParamState& s, V&& v) {
  v("momentum_buffer", s.momentum_buffer());
}
template <class S, class V>
void visit_adam(S& s, V&& v) {
  v("step", s.step()), v("exp_avg", s.exp_avg()), v("exp_avg_sq", s.exp_avg_sq()),
      v("max_exp_avg_sq", s.max_exp_avg_sq());
}
template <class V>
void visit_fields(AdamParamState& s, V&& v) {
  visit_adam(s, v);
}
template <class V>
void visit_fields(AdamWParamState& s, V&& v) {
  visit_adam(s, v);
}
template <class V>
void visit_fields(AdagradParamState& s, V&& v) {
  v("step", s.step()), v("sum", s.sum());
}
template <class V>
void visit_fields(RMSpropParamState& s, V&& v) {
  v("step", s.step()), v("square_avg", s.square_avg()), v("momentum_buffer", s.momentum_buffer()),
      v("grad_avg", s.grad_avg());
}
template <class V>
void visit_fields(LBFGSParamState& s, V&& v) {
  v("func_evals", s.func_evals()), v("n_iter", s.n_iter()), v("t", s.t()), v("prev_loss", s.prev_loss());
  v("d", s.d()), v("H_diag", s.H_diag()), v("prev_flat_grad", s.prev_flat_grad());
  v("old_dirs", s.old_dirs()), v("old_stps", s.old_stps()), v("ro", s.ro()), v("al", s.al());
}
template <class V>
void visit_fields(SGDOptions& o, V&& v) {
  v("lr", o.lr()), v("momentum", o.momentum()), v("dampening", o.dampening()), v("weight_decay", o.weight_decay()),
      v("nesterov", o.nesterov());
}
template <class O, class V>
void visit_adam_options(O& o, V&& v) {
  v("lr", o.lr()), v("beta1", std::get<0>(o.betas())), v("beta2", std::get<1>(o.betas())), v("eps", o.eps());
  v("weight_decay", o.weight_decay()), v("amsgrad", o.amsgrad());
}
template <class V>
void visit_fields(AdamOptions& o, V&& v) {
  visit_adam_options(o, v);
}
template <class V>
void visit_fields(AdamWOptions& o, V&& v) {
  visit_adam_options(o, v);
}
template <class V>
void visit_fields(AdagradOptions& o, V&& v) {
  v("lr", o.lr()), v("lr_decay", o.lr_decay()), v("weight_decay", o.weight_decay());
  v("initial_accumulator_value", o.initial_accumulator_value()), v("eps", o.eps());
}
template <class V>
void visit_fields(RMSpropOptions& o, V&& v) {
  v("lr", o.lr()), v("alpha", o.alpha()), v("eps", o.eps()), v("weight_decay", o.weight_decay()),
      v("momentum", o.momentum()), v("centered", o.centered());
}
template <class V>
void visit_fields(LBFGSOptions& o, V&& v) {
  v("lr", o.lr()), v("max_iter", o.max_iter()), v("max_eval", o.max_eval()), v("tolerance_grad", o.tolerance_grad());
  v("tolerance_change", o.tolerance_change()), v("history_size", o.history_size()),
      v("line_search_fn", o.line_search_fn());
}

// Calls `body` with the types of state and options of this optimizer, and its name.
template <class State, class Options>
struct Kind {
  using StateType = State;
  using OptionsType = Options;
  std::string name;
};
template <class Body>
void for_kind_of(const Optimizer& optimizer, const char* where, Body body) {
  if (dynamic_cast<const SGD*>(&optimizer)) return body(Kind<SGDParamState, SGDOptions>{"SGD"});
  if (dynamic_cast<const Adam*>(&optimizer)) return body(Kind<AdamParamState, AdamOptions>{"Adam"});
  if (dynamic_cast<const AdamW*>(&optimizer)) return body(Kind<AdamWParamState, AdamWOptions>{"AdamW"});
  if (dynamic_cast<const Adagrad*>(&optimizer)) return body(Kind<AdagradParamState, AdagradOptions>{"Adagrad"});
  if (dynamic_cast<const RMSprop*>(&optimizer)) return body(Kind<RMSpropParamState, RMSpropOptions>{"RMSprop"});
  if (dynamic_cast<const LBFGS*>(&optimizer)) return body(Kind<LBFGSParamState, LBFGSOptions>{"LBFGS"});
  TORCH_CHECK_NOT_IMPLEMENTED(false, "[checkpoint::", where, "] does not know the state of ",
                              c10::demangle(typeid(optimizer).name()),
                              ". Give its tensors and numbers as separate items.");
}

// Options that the same optimizers have in Python only. Some decide how a step is computed, and do not matter here;
// those with a value decide what is computed, and ours computes only that.
struct PythonOption {
  const char* name;
  std::optional<bool> ours;
};
std::vector<PythonOption> python_options(const std::string& kind) {
  return {{"maximize", false}, {"decoupled_weight_decay", kind == "AdamW"},
          {"capturable", {}},  {"differentiable", {}},
          {"foreach", {}},     {"fused", {}},
          {"initial_lr", {}}};
}

// Adds every field to a Contents.
struct NoteFields {
  Contents& contents;
  std::string scope;
  void operator()(const char* name, at::Tensor& tensor) const {
    if (tensor.defined()) contents.tensors.emplace_back(scope + name, tensor);
  }
  template <class N>
    requires std::is_arithmetic_v<N>
  void operator()(const char* name, N& number) const {
    using Stored =
        std::conditional_t<std::same_as<N, bool>, bool, std::conditional_t<std::integral<N>, int64_t, double>>;
    contents.values[scope + name] = static_cast<Stored>(number);
  }
  void operator()(const char* name, std::string& text) const { contents.values[scope + name] = text; }
  template <class T>
  void operator()(const char* name, std::optional<T>& value) const {
    if (value) (*this)(name, *value);
  }
  template <class List>
    requires std::same_as<typename List::value_type, at::Tensor>
  void operator()(const char* name, List& list) const {
    contents.values[scope + name + ".size"] = static_cast<int64_t>(list.size());
    for (size_t i = 0; i < list.size(); ++i) (*this)(c10::str(name, ".", i).c_str(), list[i]);
  }
};

// Fills every field from a checkpoint: numbers at once; tensors are created and requested.
struct FillFields {
  const CheckpointIndex& index;
  const Rename& rename;
  Wanted& wanted;
  std::string scope;
  at::Tensor parameter;  // gives the layout of new tensors; undefined for options

  const Value* find(const std::string& name) const {
    auto found = index.values.find(rename(scope + name));
    if (found == index.values.end()) return nullptr;
    wanted.used_values.insert(found->first);
    return &found->second;
  }
  void operator()(const char* name, at::Tensor& tensor) const {
    auto found = index.tensors.find(rename(scope + name));
    if (found == index.tensors.end()) return;
    auto& [dtype, shape, layout, pieces] = found->second;
    auto options = at::TensorOptions(dtype).device(parameter.device());
    if (!is_dtensor(parameter)) {
      tensor = at::empty(shape, options);
    } else if (parameter.sizes() == at::IntArrayRef(shape)) {
      tensor = empty(shape, mesh_of(parameter), settled(placements_of(parameter)), options);
    } else {
      tensor = empty(shape, mesh_of(parameter), Placements(mesh_of(parameter).ndim(), Replicate()), options);
    }
    wanted.tensors.emplace_back(scope + name, tensor);
  }
  template <class N>
    requires(std::is_arithmetic_v<N> || std::same_as<N, std::string>)
  void operator()(const char* name, N& target) const {
    using Stored = std::conditional_t<std::same_as<N, bool> || std::same_as<N, std::string>, N,
                                      std::conditional_t<std::integral<N>, int64_t, double>>;
    auto* value = find(name);
    auto* fits = value ? std::get_if<Stored>(value) : nullptr;
    auto* whole = value ? std::get_if<int64_t>(value) : nullptr;  // in Python, a rate may be 1
    if (fits) {
      target = static_cast<N>(*fits);
    } else if (std::floating_point<N> && whole) {
      if constexpr (std::floating_point<N>) target = static_cast<N>(*whole);
    } else {
      wanted.values.push_back(scope + name);  // reported as missing
    }
  }
  template <class T>
  void operator()(const char* name, std::optional<T>& value) const {
    value.reset();
    if constexpr (requires { value->size(); } && !std::same_as<T, std::string>) {
      if (find(c10::str(name, ".size"))) (*this)(name, value.emplace());
    } else {
      if (find(name)) (*this)(name, value.emplace());
    }
  }
  template <class List>
    requires std::same_as<typename List::value_type, at::Tensor>
  void operator()(const char* name, List& list) const {
    int64_t size = 0;
    (*this)(c10::str(name, ".size").c_str(), size);
    TORCH_CHECK(0 <= size && size <= kLongestList, "[checkpoint::load] ", scope, name, " cannot have ", size,
                " tensors");
    for (int64_t i = 0; i < size; ++i)
      (*this)(c10::str(name, ".", i).c_str(), list.emplace_back());  // an undefined one stays undefined
  }
};

// Whether a checkpoint has any field.
struct FindFields {
  const CheckpointIndex& index;
  const Rename& rename;
  std::string scope;
  bool& found;
  template <class Field>
  void operator()(const char* name, Field&) const {
    for (auto* rest : {"", ".size"}) {
      auto stored = rename(scope + name + rest);
      found = found || index.values.contains(stored) || index.tensors.contains(stored);
    }
  }
};

void check_kind(const std::string& kind, const std::string& scope, const FillFields& fields) {
  auto* stored = fields.find("kind");
  TORCH_CHECK_VALUE(!stored || *stored == Value(kind), "[checkpoint::load] the optimizer \"", scope,
                    "\" is of the kind ", kind, ", but ", str(*stored), " in the checkpoint. Make it of that kind.");
}

void check_python_options(const std::string& kind, const FillFields& fields) {
  for (auto& [name, ours] : python_options(kind)) {
    auto* value = fields.find(name);
    TORCH_CHECK_VALUE(!value || !ours || *value == Value(*ours), "[checkpoint::load] \"", fields.scope, name, "\" is ",
                      str(*value), ", and torch::optim::", kind, " computes its steps as if it were ",
                      str(Value(*ours)), ".");
  }
}

// Calls `body(name, parameter)` for all parameters.
template <class Body>
void for_each_parameter(Optimizer& optimizer, const ParameterNames& names, Body body) {
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    auto& parameters = optimizer.param_groups()[group].params();
    for (size_t i = 0; i < parameters.size(); ++i) {
      auto found = names.find(parameters[i].unsafeGetTensorImpl());
      body(found != names.end() ? found->second : c10::str(group, ".", i), parameters[i]);
    }
  }
}

}  // namespace

Contents optimizer_contents(Optimizer& optimizer, const std::string& scope, const ParameterNames& names) {
  Contents contents;
  for_kind_of(optimizer, "save", [&](auto kind) {
    using OfKind = decltype(kind);
    for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
      auto& options = static_cast<typename OfKind::OptionsType&>(optimizer.param_groups()[group].options());
      visit_fields(options, NoteFields{contents, joined_name(scope, c10::str("groups.", group, "."))});
    }
    contents.values[joined_name(scope, "kind")] = kind.name;
    contents.values[joined_name(scope, "groups.size")] = static_cast<int64_t>(optimizer.param_groups().size());
    for_each_parameter(optimizer, names, [&](const std::string& name, const at::Tensor& parameter) {
      auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) return;
      visit_fields(static_cast<typename OfKind::StateType&>(*found->second),
                   NoteFields{contents, joined_name(scope, "state." + name + ".")});
    });
  });
  return contents;
}

void want_optimizer(Optimizer& optimizer, const std::string& scope, const ParameterNames& names,
                    const CheckpointIndex& index, const Rename& rename, Wanted& wanted) {
  auto groups = index.values.find(rename(joined_name(scope, "groups.size")));
  if (groups == index.values.end()) return wanted.values.push_back(joined_name(scope, "groups.size"));
  TORCH_CHECK_VALUE(groups->second == Value(static_cast<int64_t>(optimizer.param_groups().size())),
                    "[checkpoint::load] the optimizer \"", scope, "\" has ", optimizer.param_groups().size(),
                    " groups of parameters, but ", str(groups->second), " in the checkpoint. Make it with as many.");
  wanted.used_values.insert(groups->first);
  for_kind_of(optimizer, "load", [&](auto kind) {
    using OfKind = decltype(kind);
    check_kind(kind.name, scope, FillFields{index, rename, wanted, joined_name(scope, ""), {}});
    using State = typename OfKind::StateType;
    using Options = typename OfKind::OptionsType;
    for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
      auto& options = static_cast<Options&>(optimizer.param_groups()[group].options());
      auto filled = std::make_shared<Options>(options);
      FillFields fields{index, rename, wanted, joined_name(scope, c10::str("groups.", group, ".")), {}};
      check_python_options(kind.name, fields);
      visit_fields(*filled, fields);
      wanted.finish.push_back([&options, filled] { options = *filled; });
    }
    for_each_parameter(optimizer, names, [&](const std::string& name, const at::Tensor& parameter) {
      auto state_scope = joined_name(scope, "state." + name + ".");
      auto* key = parameter.unsafeGetTensorImpl();
      auto state = std::make_shared<State>();
      bool found = false;
      visit_fields(*state, FindFields{index, rename, state_scope, found});
      if (!found) {  // it had none yet
        wanted.finish.push_back([&optimizer, key] { optimizer.state().erase(key); });
        return;
      }
      visit_fields(*state, FillFields{index, rename, wanted, state_scope, at_rest(parameter)});
      wanted.finish.push_back([&optimizer, key, state] { optimizer.state()[key] = std::make_unique<State>(*state); });
    });
  });
}

}  // namespace intarsia::checkpoint
