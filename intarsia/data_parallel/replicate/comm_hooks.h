#pragma once
// Communication hooks: custom functions in place of the average of gradients.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "intarsia/comm/wait.h"
#include "intarsia/core/placement.h"
#include "intarsia/core/shards.h"

namespace intarsia {

class Axis;

// A bucket to be sent: `values` has one flat buffer per hosted rank.
struct GradientBucket {
  const Axis& axis;
  Shards& values;
  ReduceOp op;  // avg; sum if the gradients are terms of one
  size_t index;
  bool is_last;
  std::vector<std::string> parameters;
};

// Leaves in `values` the new gradients, the same on all ranks of a line: at once, or when the returned function is
// called.
using CommHook = std::function<Wait(GradientBucket& bucket)>;

// Sends gradients as `dtype` (kHalf, kBFloat16), divided before they are added up.
CommHook compress_to(c10::ScalarType dtype);

}  // namespace intarsia
