#pragma once
// What ops do on ranks whose shards are empty.

#include "intarsia/rules/rule.h"

namespace intarsia {

// For Local::run: the plain op, or zeros of the local shape if a tensor of the rank is empty, which many ops reject or
// leave unwritten.
void zeros_if_empty(LocalCall& local);

// For Local::plain_does: whether a rank holds a part of every tensor.
bool holds_something(const OpCall& call, c10::ArrayRef<const Layout*> in, c10::ArrayRef<const Layout*> out,
                     const Slot& slot);

// The rule with both of these.
Rule&& unless_empty(Rule&& rule);

}  // namespace intarsia
