#pragma once
// Distributed tensors. A DTensor is an ordinary at::Tensor of global shape that is distributed over a mesh; every
// LibTorch function accepts it.

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/core/layout.h"
#include "intarsia/core/mesh.h"
#include "intarsia/core/placement.h"
#include "intarsia/core/shards.h"

namespace intarsia {

// Distributes a whole tensor over the mesh. With `src_data_rank`, all ranks take the data of the rank at that position
// (on every axis), and a different shape or dtype on one rank is an error on all; with none, every rank shards its own
// data, and nothing is sent. The result is a leaf that requires grad if `tensor` does. A Partial placement makes it a
// pending reduction whose value is `tensor`: see Note [A value as a pending reduction]. To give the terms themselves,
// use from_local.
at::Tensor distribute_tensor(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements,
                             std::optional<int64_t> src_data_rank = 0);

struct FromLocalOptions {
  bool run_check = false;  // gather the local shapes and check that they fit together; replicas are made equal
  std::optional<std::vector<int64_t>> shape, stride;  // global; needed for uneven shards unless run_check is set
};

// Takes each rank's `local` as its shard. Shares memory with it, except that one plain tensor given for all ranks of a
// simulation is copied for each, and so is one whose memory does not have the given strides, or whose elements overlap.
// Differentiable. Without a shape or run_check, all shards are assumed to have equal shapes; without strides or
// run_check, to have their dims in the same order in memory.
at::Tensor from_local(const at::Tensor& local, const DeviceMesh& mesh, const Placements& placements,
                      const FromLocalOptions& options = {});

// This rank's shard, sharing memory. In a simulation: a per-rank tensor that stands for the shards of all ranks, on
// which plain ops work. Differentiable; `grad_placements` is the layout of the incoming gradient (default: the
// tensor's, with pending reductions read as replicated).
at::Tensor to_local(const at::Tensor& tensor, const std::optional<Placements>& grad_placements = std::nullopt);

// The whole tensor, on every rank, in new memory. Differentiable.
at::Tensor full_tensor(const at::Tensor& tensor, const std::optional<Placements>& grad_placements = std::nullopt);

// The same tensor in another layout. Differentiable. With `async_op` the last collective is only started, and the first
// use of the result waits for it.
at::Tensor redistribute(const at::Tensor& tensor, const Placements& placements, bool async_op = false);

// The same tensor on another mesh of the same world: larger, smaller, with other ranks or the same. All ranks of both
// meshes call it; a rank that is not on the tensor's mesh has a handle without shards, as every op on that mesh returns
// it. Exactly the bytes that a rank lacks are sent, in one message per pair of ranks. Differentiable: the gradient
// moves back to the first mesh.
at::Tensor redistribute(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements);

// Whether a tensor is distributed; its mesh, placements and layout.
inline bool is_dtensor(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(c10::DispatchKey::PrivateUse3);
}
const DeviceMesh& mesh_of(const at::Tensor& tensor);
const Placements& placements_of(const at::Tensor& tensor);
const Layout& layout_of(const at::Tensor& tensor);
// The local tensors of the hosted ranks, in the order of mesh_of(tensor).slots().
const Shards& shards_of(const at::Tensor& tensor);
Shards shards_of(at::Tensor&& tensor);  // of a temporary

// Whether two tensors, distributed or not, share memory. (Tensor::is_alias_of reads the storage, and so is an error on
// distributed tensors.) A view shares memory with its base even if its shards are copies: writes to one are seen in the
// other.
bool is_alias_of(const at::Tensor& a, const at::Tensor& b);

// Factory functions that create only the local shards.
at::Tensor zeros(at::IntArrayRef size, const DeviceMesh& mesh, const Placements& placements,
                 at::TensorOptions options = {});
at::Tensor ones(at::IntArrayRef size, const DeviceMesh& mesh, const Placements& placements,
                at::TensorOptions options = {});
at::Tensor empty(at::IntArrayRef size, const DeviceMesh& mesh, const Placements& placements,
                 at::TensorOptions options = {});
at::Tensor full(at::IntArrayRef size, const at::Scalar& value, const DeviceMesh& mesh, const Placements& placements,
                at::TensorOptions options = {});

}  // namespace intarsia
