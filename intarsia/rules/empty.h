#pragma once
// Ranks that hold nothing.

#include "intarsia/rules/rule.h"

namespace intarsia {

// For Rule::local: the plain op; but where a tensor of a rank is empty, which many ops refuse or leave unwritten, zeros of the
// local shape.
void zeros_if_empty(LocalCall& local);

}  // namespace intarsia
