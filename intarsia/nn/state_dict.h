#pragma once
// Moves weights between a plain and a parallel model, and to and from files.
//
//   auto weights = full_state_dict(*parallel);  // on every rank
//   load_full_state_dict(*plain, weights);      // torch::save(plain, path) works now

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include "intarsia/nn/module_ref.h"

namespace intarsia {

using StateDict = torch::OrderedDict<std::string, at::Tensor>;

// All parameters and buffers by name, as plain whole tensors in new memory. All ranks of the mesh call it together.
StateDict full_state_dict(ConstModuleRef module);

// Writes whole tensors into the module's parameters and buffers, in place: each keeps its layout, its dtype and its
// handle. src_data_rank: see distribute_tensor; by default every rank has the dict, and nothing is sent. Missing or
// unknown names and different shapes are errors, before anything is written.
void load_full_state_dict(ModuleRef module, const StateDict& state,
                          std::optional<int64_t> src_data_rank = std::nullopt);

}  // namespace intarsia
