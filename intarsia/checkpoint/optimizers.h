#pragma once
// Flattens the state of torch::optim optimizers into tensors named after their parameters, and options named by group.

#include <string>
#include <unordered_map>

#include "intarsia/checkpoint/items.h"

namespace intarsia::checkpoint {

using ParameterNames = std::unordered_map<const void*, std::string>;  // by TensorImpl

// optimizer.state.model.fc1.weight.exp_avg, optimizer.state.model.fc1.weight.step, optimizer.groups.0.lr. A parameter
// of no module among the items is named by its place: optimizer.state.0.3.exp_avg.
Contents optimizer_contents(torch::optim::Optimizer& optimizer, const std::string& scope, const ParameterNames& names);

// Adds what the checkpoint has of this optimizer. New states are made for it, and take their places when all has been
// read: they lie as their parameters do, and what has another shape than its parameter is replicated.
void want_optimizer(torch::optim::Optimizer& optimizer, const std::string& scope, const ParameterNames& names,
                    const CheckpointIndex& index, const Rename& rename, Wanted& wanted);

}  // namespace intarsia::checkpoint
