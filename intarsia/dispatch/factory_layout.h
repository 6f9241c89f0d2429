#pragma once
// Factory ops that create distributed tensors in parts, each rank its shard.

#include <functional>

#include <ATen/core/dispatch/Dispatcher.h>

#include "intarsia/core/layout.h"

namespace intarsia {

// The layout of new tensors, by their shape.
struct FactoryLayout {
  DeviceMesh mesh;
  std::function<Placements(c10::IntArrayRef sizes)> placements;
};

// Calls a factory op that takes a size (zeros, randn) with the local sizes only; random numbers are those of one
// device. The arguments are the last on the stack. Returns false, with nothing done, if the op has no size or the
// result could not be on the mesh.
bool make_in_parts(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack, const FactoryLayout& place);

}  // namespace intarsia
