#include "intarsia/checkpoint/items.h"

#include <map>
#include <set>

#include "intarsia/checkpoint/optimizers.h"
#include "intarsia/checkpoint/safetensors.h"
#include "intarsia/checkpoint/states.h"
#include "intarsia/core/overloaded.h"
#include "intarsia/tensor/at_rest.h"

namespace intarsia::checkpoint {
namespace {

// Parameters of fully_shard are saved, and loaded, as shards, also where unshard() was called: see at_rest.
Tensors tensors_in(torch::nn::Module& module, const std::string& scope) {
  Tensors tensors;
  for (auto& items : {module.named_parameters(), module.named_buffers()}) {
    for (auto& item : items) {
      if (item.value().defined()) tensors.emplace_back(joined_name(scope, item.key()), item.value());
    }
  }
  return tensors;
}

// A tensor to read into.
void want(Wanted& wanted, std::string name, const at::Tensor& tensor) {
  wanted.tensors.emplace_back(std::move(name), at_rest(tensor));
  if (!wanted.tensors.back().second.is_same(tensor)) wanted.finish.push_back([=] { written_at_rest(tensor); });
}

// The names of all parameters of the modules among the items. A parameter that two names share has the first.
ParameterNames parameter_names(const Items& items) {
  ParameterNames names;
  for (auto& [scope, item] : items) {
    auto* module = std::get_if<torch::nn::Module*>(&item.content());
    if (!module) continue;
    for (auto& parameter : (*module)->named_parameters()) {
      names.emplace(parameter.value().unsafeGetTensorImpl(), joined_name(scope, parameter.key()));
    }
  }
  return names;
}

template <class Container>
void check_distinct(const char* where, const Container& names) {
  std::set<std::string> seen;
  for (auto& [name, value] : names) {
    TORCH_CHECK_VALUE(seen.insert(name).second, "[checkpoint::", where, "] \"", name,
                      "\" is given twice. Give each item a unique name.");
  }
}

// Checked here, before ranks write or exchange anything: a plain tensor may be wrong on one rank only.
void check_storable(const std::string& name, const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(tensor.layout() == c10::kStrided, "[checkpoint::save] \"", name, "\" is of the layout ",
                   tensor.layout(), ", and files hold strided tensors. Save to_dense() of it, or its parts.");
  TORCH_CHECK_VALUE(!tensor.is_meta(), "[checkpoint::save] \"", name,
                    "\" is on the meta device and has no values. Leave it out.");
  try {
    dtype_name(tensor.scalar_type());
  } catch (const c10::Error& error) {
    TORCH_CHECK_TYPE(false, "[checkpoint::save] \"", name, "\": ", error.what_without_backtrace());
  }
}

}  // namespace

Item::Item(torch::optim::LRScheduler& scheduler) : content_(schedule_state(scheduler)) {}
Item::Item(GradScaler& scaler) : content_(scaler_state(scaler)) {}
Item::Item(const at::Generator& generator) : content_(generator_state(generator)) {}
Item::Item(WriteArchive write, ReadArchive read) : content_(archive_state(std::move(write), std::move(read))) {}

std::string joined_name(const std::string& scope, const std::string& name) {
  return scope.empty() ? name : scope + "." + name;
}

Contents contents_of(const Items& items) {
  check_distinct("save", items);
  auto names = parameter_names(items);
  Contents contents;
  auto add_values = [&](const ValueMap& values) {
    for (auto& [name, value] : values) {
      TORCH_CHECK_VALUE(contents.values.emplace(name, value).second, "[checkpoint::save] \"", name,
                        "\" is given twice. Give each item a unique name.");
    }
  };
  for (auto& [scope, item] : items) {
    std::visit(overloaded{[&](torch::nn::Module* module) {
                            for (auto& [name, tensor] : tensors_in(*module, scope))
                              contents.tensors.emplace_back(name, at_rest(tensor));
                          },
                          [&](torch::optim::Optimizer* optimizer) {
                            auto state = optimizer_contents(*optimizer, scope, names);
                            for (auto& tensor : state.tensors) contents.tensors.push_back(std::move(tensor));
                            add_values(state.values);
                          },
                          [&](const at::Tensor& tensor) {
                            TORCH_CHECK_VALUE(tensor.defined(), "[checkpoint::save] \"", scope,
                                              "\" is an undefined tensor. Leave it out.");
                            contents.tensors.emplace_back(scope, at_rest(tensor));
                          },
                          [&](const NamedState& state) {
                            for (auto& [name, tensor] : state.tensors) {
                              TORCH_CHECK_VALUE(tensor.defined(), "[checkpoint::save] \"", joined_name(scope, name),
                                                "\" is an undefined tensor. Leave it out.");
                              contents.tensors.emplace_back(joined_name(scope, name), at_rest(tensor));
                            }
                          },
                          [&](const StateMaker& maker) {
                            TORCH_CHECK_VALUE(
                                maker.contents, "[checkpoint::save] \"", scope,
                                "\" can only be loaded into. Give its tensors and numbers as separate items.");
                            auto state = maker.contents(scope);
                            for (auto& tensor : state.tensors) contents.tensors.push_back(std::move(tensor));
                            add_values(state.values);
                          },
                          [&](const Value& value) { add_values({{scope, value}}); }},
               item.content());
  }
  check_distinct("save", contents.tensors);
  for (auto& [name, tensor] : contents.tensors) check_storable(name, tensor);
  return contents;
}

Wanted wanted_by(const Items& items, const CheckpointIndex& index, const Rename& rename) {
  check_distinct("load", items);
  auto names = parameter_names(items);
  Wanted wanted;
  auto ask_for_all = [&](const std::string& scope) {
    if (!scope.empty()) wanted.scopes.push_back(scope + "."), wanted.value_scopes.push_back(scope + ".");
  };
  for (auto& [scope, item] : items) {
    std::visit(overloaded{[&](torch::nn::Module* module) {
                            wanted.scopes.push_back(scope.empty() ? "" : scope + ".");
                            for (auto& [name, tensor] : tensors_in(*module, scope)) want(wanted, name, tensor);
                          },
                          [&](torch::optim::Optimizer* optimizer) {
                            ask_for_all(scope);
                            want_optimizer(*optimizer, scope, names, index, rename, wanted);
                          },
                          [&](const StateMaker& maker) {
                            ask_for_all(scope);
                            maker.want(scope, index, rename, wanted);
                          },
                          [&](const at::Tensor& tensor) {
                            TORCH_CHECK_VALUE(tensor.defined(), "[checkpoint::load] \"", scope,
                                              "\" is an undefined tensor. Make one of the right shape.");
                            want(wanted, scope, tensor);
                          },
                          [&](const NamedState& state) {
                            wanted.scopes.push_back(scope.empty() ? "" : scope + ".");
                            for (auto& [name, tensor] : state.tensors) want(wanted, joined_name(scope, name), tensor);
                          },
                          [&](const Value&) { wanted.values.push_back(scope); }},
               item.content());
  }
  for (auto& [name, tensor] : wanted.tensors) {
    TORCH_CHECK_VALUE(
        !tensor.is_meta(), "[checkpoint::load] \"", name,
        "\" is on the meta device and has no memory to read into. Give it some first, as to_empty() does in Python.");
  }
  return wanted;
}

}  // namespace intarsia::checkpoint
