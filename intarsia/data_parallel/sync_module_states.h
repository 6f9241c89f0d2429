#pragma once
// Checks that all ranks hold the same parameters and buffers, and broadcasts their values.

#include <string>
#include <utility>
#include <vector>

#include "intarsia/comm/axis.h"

namespace intarsia {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Raises an error of `where`, on all ranks, if names, shapes or dtypes differ between the ranks of a line. Returns the
// highest `number` that any of them passes.
int64_t verify_tensors_across_ranks(const char* where, const Axis& axis, const NamedTensors& parameters,
                                    const NamedTensors& buffers, int64_t number);

// In place: every tensor, plain or distributed, becomes that of the member at `source`, along an axis of the
// mesh, in one message. A plain tensor of simulated ranks is one value already.
void broadcast_tensors(const DeviceMesh& mesh, const std::vector<at::Tensor>& tensors, int64_t source, Wait* wait,
                       int64_t axis = 0);

// Makes buffers of simulated ranks per-rank tensors, in place: modules write statistics of the batch into them, and the
// batch differs by rank. Does nothing if there is one slot.
void make_per_rank(const NamedTensors& buffers, size_t slots);

}  // namespace intarsia
