#pragma once
// Makes the decision for a call that is not in the cache: what the plain op would return, and which layouts to use.

#include <memory>

#include "intarsia/dispatch/cache.h"
#include "intarsia/dispatch/call.h"

namespace intarsia {

std::shared_ptr<const Decision> decide(const Call& call);

// Whether the op has a planner that is to be asked, see cut_dims.h.
bool asks_planner(const Op& op);

// The way that the op's planner has for a call of this form; empty if the rows serve.
Way way_for(const Op& op, c10::ArrayRef<c10::IValue> args);
Way way_for(const Op& op, c10::ArrayRef<c10::IValue> args, const std::vector<const Layout*>& layouts);

// For an unsettled decision: carries out what is pending in a tensor that is to be written, where nobody can see it; else it
// is an error. The call must be read again.
void settle_written(const Call& call);

}  // namespace intarsia
