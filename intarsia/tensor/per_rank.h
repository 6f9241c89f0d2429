#pragma once
// One tensor that stands for a value per hosted rank: what to_local yields in a simulation.
//
// Plain ops fan out over the values; plain tensors among the arguments are the same for every rank. The sizes that
// such a tensor shows are those of the first hosted rank.

#include <ATen/core/Tensor.h>

#include "intarsia/core/shards.h"

namespace intarsia {

constexpr auto kPerRankKey = c10::DispatchKey::PrivateUse2;

at::Tensor per_rank(Shards values);
bool is_per_rank(const at::Tensor& tensor);
const Shards& values_of(const at::Tensor& tensor);

// The value of the hosted rank number `slot`: values_of for a per-rank tensor, the tensor itself for a plain one.
at::Tensor value_at(const at::Tensor& tensor, size_t slot);

void register_per_rank();

}  // namespace intarsia
