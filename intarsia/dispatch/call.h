#pragma once
// One call of an op as dispatch sees it: the tensors among its arguments, found and checked.

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include "intarsia/dispatch/op.h"
#include "intarsia/tensor/body.h"

namespace intarsia {

// A tensor among the arguments: args[arg], or element `index` of the list there.
struct Operand {
  at::Tensor tensor;  // undefined where an optional one is missing
  DTensorBody* body;  // null where the tensor is plain
  int arg;
  int index;             // -1 outside lists
  const Layout* layout;  // null for a plain number and an undefined tensor; for other plain ones, what they will get
};
using Operands = c10::SmallVector<Operand, 4>;

struct Call {
  const Op& op;
  c10::ArrayRef<c10::IValue> args;
  DeviceMesh mesh;
  Operands operands;
};

// Calls `body` with every tensor among the arguments, undefined ones included, its argument and its position in a list,
// or -1.
template <class Body>
void for_each_tensor(const Op& op, c10::ArrayRef<c10::IValue> args, Body body) {
  const at::Tensor none;
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.kinds[i] == ArgKind::tensor) {
      body(args[i].isTensor() ? args[i].toTensor() : none, i, -1);
    } else if (op.kinds[i] == ArgKind::tensor_list && args[i].isTensorList()) {
      int index = 0;
      for (const at::Tensor& tensor : args[i].toTensorList()) body(tensor, i, index++);
    } else if (op.kinds[i] == ArgKind::tensor_list && args[i].isList()) {  // a list of optional tensors
      int index = 0;
      for (const c10::IValue& item : args[i].toListRef()) body(item.isTensor() ? item.toTensor() : none, i, index++);
    }
  }
}

// Whether a plain tensor that is written, at position `index` of a list (-1 outside lists), becomes distributed in
// place: see call.cpp.
bool may_become_distributed(const at::Tensor& tensor, int index);

// Finds the operands and checks that all distributed ones share a mesh. Nothing is sent.
Call look_at_call(const Op& op, c10::ArrayRef<c10::IValue> args);

// Converts the plain tensors among the operands that the policy admits to distributed ones, and brings numbers of other
// meshes to the mesh of the call. May communicate: call it once per call.
void admit_operands(Call& call);

// look_at_call, then admit_operands.
Call read_call(const Op& op, c10::ArrayRef<c10::IValue> args);

}  // namespace intarsia
