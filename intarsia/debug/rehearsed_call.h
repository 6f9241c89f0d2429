#pragma once
// One call of an op on tensors without data: how its results would lie, and what would move.

#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "intarsia/comm/trace.h"
#include "intarsia/core/layout.h"

namespace intarsia {

struct RehearsedCall {
  std::vector<const Layout*> out;  // on `mesh`; null for what is no distributed tensor
  std::vector<CommEvent> moves;
};

// Dispatch itself runs the call, on a simulated world. `layouts` are those of the tensors among `args`, in order, on `mesh`;
// the tensors themselves are on the meta device.
RehearsedCall rehearse(const c10::OperatorHandle& op, std::vector<c10::IValue> args, const std::vector<const Layout*>& layouts,
                       const DeviceMesh& mesh);

}  // namespace intarsia
