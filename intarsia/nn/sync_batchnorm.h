#pragma once
// Batch norms that use the statistics of all ranks.
//
//   convert_sync_batchnorm(model, mesh["dp"]);  // before or after replicate or fully_shard
//   loss_of(model, my_rows).backward();         // like one device with all rows

#include <cstdint>

#include "intarsia/core/mesh.h"
#include "intarsia/nn/module_ref.h"

namespace intarsia {

// Note [Synchronized batch norm]
// In training, a converted BatchNorm1d, 2d or 3d normalizes a plain input by the mean and the variance over the inputs
// of all ranks of the mesh, however many rows each has, and updates its running statistics with these, so that they are
// the same on all ranks. Gradients are those of the sum of all ranks' losses, since activations of one rank affect the
// losses of all. Forward and backward send two messages each, of a few numbers per channel. In evaluation nothing
// changes. A distributed input has the statistics of its mesh anyway.
//
// Modules of torch::nn cannot be replaced inside others, whose members have a fixed type. So a norm is identified by
// its weight and its running statistics, and torch::batch_norm, which all of them call, is ours: see Note [Interposed
// functions]. A clone() is a plain norm.

// Converts all batch norms in the module, and returns how many. The mesh has one axis. All ranks call forward and
// backward together.
int64_t convert_sync_batchnorm(ModuleRef module, const DeviceMesh& mesh);

}  // namespace intarsia
