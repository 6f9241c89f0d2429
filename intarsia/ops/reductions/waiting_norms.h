#pragma once
// Norms that are computed when one of them is first read, all that wait on a mesh together.
//
// Note [Norms that wait]
// clip_grad_norm_ computes the norm of one gradient after the other and only then reads them. So a norm is a number
// that arrives later: the sums of powers of all shards on a mesh are added up in one all-reduce when the first norm is
// read. Small gradients whose own reduction is pending wait as well, as copies: they are reduced together first, and
// each tensor remembers its reduced value, so that it is not reduced again. Writing to a gradient after the call of its
// norm does not change the norm.
//
// Numbers that ranks should agree on are sent in the same message: see agreed_numbers.

#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/core/mesh.h"
#include "intarsia/core/shards.h"

namespace intarsia {

// Whether waiting_norm applies: something has to be sent, and the norm is a sum of powers.
bool norm_waits(const Layout& layout, at::IntArrayRef sizes, double ord, at::ScalarType type);

// The norm of all elements of a tensor, a number on all ranks of its mesh, which is computed when it is first read.
at::Tensor waiting_norm(const at::Tensor& self, double ord, at::ScalarType type);

// Whether a message is due on the mesh because norms wait there that have not been read.
bool has_waiting_norms(const DeviceMesh& mesh);

// One number per rank in, and the numbers that the ranks of each group agree on out: numbers[i][slot], undefined where
// a rank has none. The ranks that have one have the same one, up to rounding; all get their mean, in double. An error
// that names `op` if they differ. They are sent with the norms that wait on the mesh.
std::vector<Shards> agreed_numbers(const DeviceMesh& mesh, const std::vector<Shards>& numbers, const char* op);

}  // namespace intarsia
