#pragma once
// A table that shows how fully_shard and replicate group the parameters of a model.

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace intarsia {

// A line per group of fully_shard, per replicated module, and for parameters in neither, by mesh. Empty if no parameter
// is in either. Does not communicate.
//
//   kind         group     parameters  on                     layouts  bytes  of a rank  state
//   fully_shard  layers.0           7  DeviceMesh(cpu, dp=2)  [S(0)]   10240       5120  shards, freed after forward
//   replicate    head               2  DeviceMesh(cpu, dp=2)  plain      340        340  1 bucket
//   total                           9                                  10580       5460
std::string groups_table(const std::vector<std::pair<std::string, at::Tensor>>& parameters);

}  // namespace intarsia
