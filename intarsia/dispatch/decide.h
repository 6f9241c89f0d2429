#pragma once
// Makes the decision for a call that is not in the cache: its route, what the plain op would return, and which layouts
// to use.

#include <memory>
#include <optional>

#include "intarsia/dispatch/cache.h"
#include "intarsia/dispatch/call.h"

namespace intarsia {

// `lowering` is what the op's planner has for the call, if anything: the route unless a guide (propagate/guide.h)
// advises rows. A guide is asked here, once. Operands need not be admitted.
std::shared_ptr<const Decision> decide(const Call& call, Lowering lowering = {});

// Decides a call that nothing is known of, and keeps the decision under its key. Arguments are read once: into `call`,
// unless a lowering takes them as they are.
std::shared_ptr<const Decision> decided(const Op& op, c10::ArrayRef<c10::IValue> arguments, const CallKey* key,
                                        std::optional<Call>& call);

// Whether a rule has been given to an op that had none.
bool has_new_rule(const Op& op);

// A fallback is right but slow on whole tensors: said once per op, and always in the trace. An error in strict mode.
void announce_fallback(const Call& call);

// The lowering that the op's planner has for a call of this form; empty if the rows serve.
Lowering lowering_for(const Op& op, c10::ArrayRef<c10::IValue> args);
Lowering lowering_for(const Op& op, c10::ArrayRef<c10::IValue> args, const std::vector<const Layout*>& layouts);

// Whether the value that a call with Decision::scales_pending writes has been reduced already: then that is what it
// goes on with, and nobody has to reduce it again.
bool has_reduced_target(const Call& call);

// For an unsettled decision: carries out what is pending in a tensor that is to be written, where nobody can see it;
// else it is an error. The call must be read again.
void settle_written(const Call& call);

}  // namespace intarsia
