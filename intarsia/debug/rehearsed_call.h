#pragma once
// Rehearses one call of an op on meta tensors: the layouts of its results, and what would be sent.

#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "intarsia/comm/trace.h"
#include "intarsia/core/layout.h"

namespace intarsia {

struct RehearsedCall {
  std::vector<const Layout*> out;  // on `mesh`; null if not a distributed tensor
  std::vector<CommEvent> moves;
  // It ran on ones, and on zeros for integers. Other values may be sent differently.
  bool with_data = false;
  std::vector<std::string> fallbacks;  // ops without a rule that ran on whole tensors
};

// Dispatch itself runs the call, in a simulated world. `layouts` are those of the tensors among `args`, in order, on
// `mesh`; the tensors themselves are on the meta device. If an op cannot run without data, and the tensors are small,
// it gets ones.
RehearsedCall rehearse(const c10::OperatorHandle& op, std::vector<c10::IValue> args,
                       const std::vector<const Layout*>& layouts, const DeviceMesh& mesh);

}  // namespace intarsia
