#pragma once
// Ranks that hold nothing.

#include "intarsia/rules/rule.h"

namespace intarsia {

// For Local::run: the plain op; but where a tensor of a rank is empty, which many ops refuse or leave unwritten, zeros
// of the local shape.
void zeros_if_empty(LocalCall& local);

// For Local::plain_does: whether a rank holds something of every tensor.
bool holds_something(const OpCall& call, c10::ArrayRef<const Layout*> in, c10::ArrayRef<const Layout*> out,
                     const Slot& slot);

// A rule with both.
Rule&& unless_empty(Rule&& rule);

}  // namespace intarsia
