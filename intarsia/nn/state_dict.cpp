#include "intarsia/nn/state_dict.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "intarsia/tensor/at_rest.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

// The module's own tensors. A tensor that is registered twice has two names.
StateDict named_tensors(const torch::nn::Module& module) {
  StateDict tensors;
  for (auto& items : {module.named_parameters(), module.named_buffers()}) {
    for (auto& item : items) tensors.insert(item.key(), item.value());
  }
  return tensors;
}

}  // namespace

StateDict full_state_dict(ConstModuleRef given) {
  auto& module = *given;
  at::NoGradGuard no_grad;
  StateDict state;
  for (auto& item : named_tensors(module)) {
    auto value = item.value().detach();
    state.insert(item.key(), is_dtensor(value) ? full_tensor(value) : value.clone());
  }
  return state;
}

void load_full_state_dict(ModuleRef given, const StateDict& state, std::optional<int64_t> src_data_rank) {
  auto& module = *given;
  at::NoGradGuard no_grad;
  auto own = named_tensors(module);
  for (auto& item : state) {
    TORCH_CHECK_VALUE(own.contains(item.key()), "[load_full_state_dict] ", module.name(),
                      " has no parameter or buffer \"", item.key(), "\". Take it out of the dict.");
  }
  for (auto& item : own) {
    auto* value = state.find(item.key());
    TORCH_CHECK_VALUE(value && value->defined(), "[load_full_state_dict] the dict has no value for \"", item.key(),
                      "\". Add it, for instance from full_state_dict of this module.");
    TORCH_CHECK_VALUE(value->sizes() == item.value().sizes(), "[load_full_state_dict] \"", item.key(),
                      "\" has the shape ", value->sizes(), " in the dict and ", item.value().sizes(),
                      " in the module. They must be equal.");
    TORCH_CHECK_TYPE(!is_dtensor(*value), "[load_full_state_dict] \"", item.key(),
                     "\" is a distributed tensor. Give whole tensors, for instance from full_state_dict.");
  }
  for (auto& item : own) {
    auto target = at_rest(item.value()).detach();
    auto value = state[item.key()].detach();
    if (is_dtensor(target)) value = distribute_tensor(value, mesh_of(target), placements_of(target), src_data_rank);
    target.copy_(value);
    written_at_rest(item.value());
  }
}

}  // namespace intarsia
