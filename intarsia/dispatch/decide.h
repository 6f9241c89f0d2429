#pragma once
// Makes the decision for a call that is not in the cache: what the plain op would return, and which layouts to use.

#include <memory>

#include "intarsia/dispatch/cache.h"
#include "intarsia/dispatch/call.h"

namespace intarsia {

// With `only_as_advised`, null if there is no guide (propagate/guide.h) or none whose advice the rows allow.
std::shared_ptr<const Decision> decide(const Call& call, bool only_as_advised = false);

// The way that the op's planner has for a call of this form; empty if the rows serve.
Way way_for(const Op& op, c10::ArrayRef<c10::IValue> args);
Way way_for(const Op& op, c10::ArrayRef<c10::IValue> args, const std::vector<const Layout*>& layouts);

// Whether the value that a call with Decision::scales_pending writes has been reduced already: then that is what it
// goes on with, and nobody has to reduce it again.
bool has_reduced_target(const Call& call);

// For an unsettled decision: carries out what is pending in a tensor that is to be written, where nobody can see it; else it
// is an error. The call must be read again.
void settle_written(const Call& call);

}  // namespace intarsia
