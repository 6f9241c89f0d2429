#pragma once
// New tensors that are distributed from birth.

#include <functional>

#include <ATen/core/dispatch/Dispatcher.h>

#include "intarsia/core/layout.h"

namespace intarsia {

// Where new tensors lie, by their shape.
struct FactoryLayout {
  DeviceMesh mesh;
  std::function<Placements(c10::IntArrayRef sizes)> placements;
};

// Calls an op that makes a tensor of a given size (zeros, randn), on the local sizes alone; random numbers are those of
// one device. The arguments are the last on the stack. False, and nothing is done, if the op has no size or the result
// could not be on the mesh.
bool make_in_parts(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack, const FactoryLayout& place);

}  // namespace intarsia
