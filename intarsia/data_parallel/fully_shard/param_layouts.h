#pragma once
// The layouts of a fully_shard parameter: of its shards, and of the whole, and which axes of their meshes belong to
// data parallelism.

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/comm/axis.h"
#include "intarsia/core/layout.h"

namespace intarsia {

// How the shards of a parameter group are distributed: sharded along `shard`, copied along `replicate` if there is one.
// A parameter that is already distributed (tensor parallelism) keeps that sharding inside: see Note [Sharded twice].
struct ShardingAxes {
  DeviceMesh mesh;
  int64_t shard_axis;
  const Axis* shard;
  const Axis* replicate;  // null on a mesh of one axis
  const Axis* all;        // both as one: ranks exchange reports with all that share the parameters
  // PyTorch's dp_mesh_dims: parameters are distributed while they are whole, even if their mesh has no other axes, and
  // sums that are pending along these axes become averages. See Note [Terms of an average].
  bool on_full_mesh = false;

  // For a mesh of one or two axes; the last one shards.
  static ShardingAxes of(const DeviceMesh& mesh);
  // For a mesh of one axis: copies along it, and nothing is sharded.
  static ShardingAxes replicated(const DeviceMesh& mesh);
};

// Whether a parameter is already distributed over this very mesh: it was created there, and only its shards move.
bool lies_on(const at::Tensor& parameter, const DeviceMesh& mesh);
// Whether the ranks along the axes already have different parts of it.
bool is_cut_along(const at::Tensor& parameter, const ShardingAxes& axes);

// Note [Sharded twice]
// A parameter of a tensor-parallel module is distributed over "tp", or over a mesh that also has the axis "dp"; its
// whole, here, is that layout: each rank's own shard is sharded once more over the ranks along "dp". The result is on a
// mesh of all axes, which is the parameter's own if that has them. If both shard one dim, "tp" splits it first. On a
// mesh (dp, tp) that is a StridedShard along "dp", as long as that gives each rank what it has. 7 rows over 2 ranks
// along "tp" and 2 along "dp" are 4 and 3, and then 2, 2 and 2, 1; [SS(0, 2), S(0)] says the same. 9 rows over 2 and 4
// are 2, 2, 1, 0 and 1, 1, 1, 1; the last rank along "dp" has one row for two ranks along "tp", and a StridedShard
// would give it to the first. Then the mesh is (tp, dp), and the layout [S(0), S(0)].
struct ParamLayouts {
  const Layout* shards = nullptr;
  const Layout* whole = nullptr;  // null if the whole is a plain tensor
  std::vector<int64_t> data,
      copies;  // axes of the mesh of the shards: those of data parallelism, and among them those of copies
  std::vector<int64_t> data_of_whole;  // axes of the mesh of the whole, if it has those of data parallelism
};

// `dim`: the one that is sharded along the axes of data parallelism; none: every rank keeps the whole.
ParamLayouts layouts_of_param(const std::string& name, const ShardingAxes& axes, const at::Tensor& parameter,
                              std::optional<int64_t> dim);

// A distributed parameter on meta that `mesh` is to shard, in the layout that it will have once it has values; or
// unchanged, if that is on a mesh other than its own.
at::Tensor laid_out_as_shards(const std::string& name, const DeviceMesh& mesh, const at::Tensor& parameter,
                              std::optional<int64_t> dim);

}  // namespace intarsia
