#pragma once
// Flattens the state of torch::optim optimizers into tensors named after their parameters, and options named by group.

#include <string>
#include <unordered_map>

#include "intarsia/checkpoint/items.h"

namespace intarsia::checkpoint {

using ParameterNames = std::unordered_map<const void*, std::string>;  // by TensorImpl

// optimizer.state.model.fc1.weight.exp_avg, optimizer.state.model.fc1.weight.step, optimizer.groups.0.lr. A parameter
// that is in no module among the items is named by its position: optimizer.state.0.3.exp_avg.
Contents optimizer_contents(torch::optim::Optimizer& optimizer, const std::string& scope, const ParameterNames& names);

// Requests what the checkpoint has of this optimizer. Creates new states for it, which replace the old ones when all
// has been read: they have the layouts of their parameters, or are replicated if their shape differs from the
// parameter's.
void want_optimizer(torch::optim::Optimizer& optimizer, const std::string& scope, const ParameterNames& names,
                    const CheckpointIndex& index, const Rename& rename, Wanted& wanted);

}  // namespace intarsia::checkpoint
