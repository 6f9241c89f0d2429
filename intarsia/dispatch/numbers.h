#pragma once
// Numbers (distributed tensors of one element) in ops on tensors of another mesh, or on plain tensors.
//
// Note [Numbers of other meshes]
// The gradients of one model are on several meshes: tensor-parallel ones on ("dp", "tp"), others on "dp" or on no mesh
// at all. A result of all of them, such as the factor of clip_grad_norm_, is one number, and each rank that has it may
// use it:
// - for a tensor of another mesh, if the ranks of each group of that mesh have the same number, that is, are in one
// group of the number's mesh: a number of ("dp", "tp") serves "dp", but one of "dp" may differ between the groups of
// "tp";
// - for a plain tensor that is written: this rank writes its own tensor with its own copy of the number. The tensor
// stays plain.

#include <vector>

#include <ATen/core/ivalue.h>

#include "intarsia/core/mesh.h"
#include "intarsia/core/shards.h"
#include "intarsia/dispatch/op.h"

namespace intarsia {

// Whether a number that is replicated on `from` is the same on all ranks of each group of `to`.
bool is_number_of(const DeviceMesh& from, const DeviceMesh& to);

// The number as a tensor replicated on `mesh`. Communicates if a reduction is pending.
at::Tensor number_on(const at::Tensor& number, const DeviceMesh& mesh);

// The plain number of the hosted rank. In a simulation it is a per-rank tensor if the ranks' numbers differ. An error
// that names `op` if a hosted rank has none.
at::Tensor number_on_no_mesh(const at::Tensor& number, const char* op);

// Raises an error that names `op` if a rank of this process is not in the mesh, since it has none of the numbers there.
void check_all_have_numbers(const DeviceMesh& mesh, const char* op);

// Whether the first tensor is plain and all distributed ones are numbers, so that the call is one on plain tensors: it
// writes a plain tensor, or a PlainElementScope is open.
bool is_plain_call(const Op& op, c10::ArrayRef<c10::IValue> args);
// Runs it, with plain numbers instead of the distributed ones.
void run_plain_call(const Op& op, std::vector<c10::IValue>& arguments, std::vector<c10::IValue>& stack);

// While alive, this thread works through the elements of lists one by one: an op on a plain tensor and distributed
// numbers returns a plain tensor.
class PlainElementScope {
 public:
  PlainElementScope();
  ~PlainElementScope();
  PlainElementScope(const PlainElementScope&) = delete;
  PlainElementScope& operator=(const PlainElementScope&) = delete;

 private:
  bool outer_;
};

}  // namespace intarsia
