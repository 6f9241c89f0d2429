#pragma once
// The layouts of a parameter of fully_shard: of its shards, and of the whole, and which axes of their meshes are those
// of data parallelism.

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/comm/axis.h"
#include "intarsia/core/layout.h"

namespace intarsia {

// Where the shards of a group of parameters lie: cut along `shard`, copied along `replicate` if there is one. A
// parameter that is distributed already (tensor parallelism) keeps that cut inside: see Note [Cut twice].
struct ShardingAxes {
  DeviceMesh mesh;
  int64_t shard_axis;
  const Axis* shard;
  const Axis* replicate;  // null on a mesh of one axis
  const Axis* all;        // both read as one: what the ranks tell each other, they tell all who share the parameters
  // PyTorch's dp_mesh_dims: parameters are distributed when they are whole, also where their mesh has no other axes,
  // and sums that are pending along these axes become averages. See Note [Terms of an average].
  bool on_full_mesh = false;

  // Of one or two axes; the last one shards.
  static ShardingAxes of(const DeviceMesh& mesh);
  // Of a mesh of one axis: copies along it, and nothing is sharded.
  static ShardingAxes replicated(const DeviceMesh& mesh);
};

// Whether a parameter is distributed over that very mesh already: it was born there, and only its shards move.
bool lies_on(const at::Tensor& parameter, const DeviceMesh& mesh);
// Whether the ranks along the axes have different parts of it already.
bool is_cut_along(const at::Tensor& parameter, const ShardingAxes& axes);

// Note [Cut twice]
// A parameter of a tensor-parallel module is distributed over "tp", or over a mesh that has the axis "dp" besides; its
// whole, here, is what it is there: each rank's own shard is cut once more over the ranks along "dp". The result lies
// on a mesh of all axes, which is the parameter's own if that has them. If both cut one dim, the cut along "tp" comes
// first. On a mesh (dp, tp) that is a StridedShard along "dp", as long as that gives each rank what it has. 7 rows over
// 2 ranks along "tp" and 2 along "dp" are 4 and 3, and then 2, 2 and 2, 1; [SS(0, 2), S(0)] says the same. 9 rows over
// 2 and 4 are 2, 2, 1, 0 and 1, 1, 1, 1; the last one along "dp" has one row for two ranks along "tp", and a cut would
// give it to the first. Then the mesh is (tp, dp), and the layout [S(0), S(0)].
struct ParamLayouts {
  const Layout* shards = nullptr;
  const Layout* whole = nullptr;  // null where the whole is a plain tensor
  std::vector<int64_t> data,
      copies;  // axes of the mesh of the shards: those of data parallelism, and among them those of copies
  std::vector<int64_t> data_of_whole;  // axes of the mesh of the whole, if it has those of data parallelism
};

// `dim`: the one that is cut along the axes of data parallelism; none: every rank keeps the whole.
ParamLayouts layouts_of_param(const std::string& name, const ShardingAxes& axes, const at::Tensor& parameter,
                              std::optional<int64_t> dim);

// A distributed parameter on meta, which `mesh` is to cut, as it will lie at rest once it has values; or the same, if
// that is on another mesh than its own.
at::Tensor laid_out_as_shards(const std::string& name, const DeviceMesh& mesh, const at::Tensor& parameter,
                              std::optional<int64_t> dim);

}  // namespace intarsia
