#pragma once
// A distributed tensor of one element where other tensors are: on another mesh, or plain.
//
// Note [Numbers of other meshes]
// Gradients of one model lie on several meshes: tensor-parallel ones on ("dp", "tp"), others on "dp" or on no mesh at
// all. What is computed from all of them, as the factor of clip_grad_norm_, is one number, and each rank that has it
// may use it:
// - for a tensor of another mesh, if the ranks of each group of that mesh have the same number, that is, lie in one
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

// Whether a number that is replicated on `from` is one number in each group of `to`.
bool is_number_of(const DeviceMesh& from, const DeviceMesh& to);

// The number, which is one on `mesh`, replicated there. Communicates if a reduction is pending.
at::Tensor number_on(const at::Tensor& number, const DeviceMesh& mesh);

// The same for a rank that hosts it, outside of any mesh. In a simulation one tensor that stands for the numbers of all
// ranks, if they differ. An error that names `op` if a hosted rank has none.
at::Tensor number_on_no_mesh(const at::Tensor& number, const char* op);

// An error that names `op` if a rank of this process is no part of the mesh: it has none of the numbers there.
void check_all_have_numbers(const DeviceMesh& mesh, const char* op);

// Whether the first tensor is plain and all distributed ones are numbers, so that the call is one on plain tensors:
// what is written is plain, or a PlainElementScope is open.
bool is_plain_call(const Op& op, c10::ArrayRef<c10::IValue> args);
// Runs it, with plain numbers in place of the distributed ones.
void run_plain_call(const Op& op, std::vector<c10::IValue>& arguments, std::vector<c10::IValue>& stack);

// While it lives, this thread works through the elements of lists, each by itself: a plain tensor and distributed
// numbers give a plain tensor.
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
