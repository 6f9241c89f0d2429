#pragma once
// One call of an op as dispatch sees it: the tensors among its arguments, found and checked.

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include "intarsia/tensor/meta.h"
#include "intarsia/tensor/op.h"

namespace intarsia {

// A tensor among the arguments: args[arg], or element `index` of the list there.
struct Operand {
  at::Tensor tensor;   // undefined where an optional one is missing
  DTensorMeta* meta;   // null where the tensor is plain
  int arg;
  int index;           // -1 outside lists
};
using Operands = c10::SmallVector<Operand, 4>;

struct Call {
  const Op& op;
  c10::ArrayRef<c10::IValue> args;
  DeviceMesh mesh;
  Operands operands;
};

// Finds the operands, applies the policy for plain tensors, and checks that all distributed ones share a mesh.
Call read_call(const Op& op, c10::ArrayRef<c10::IValue> args);

}  // namespace intarsia
