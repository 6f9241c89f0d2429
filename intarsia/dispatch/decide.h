#pragma once
// Decides a call that is not in the cache: its route, the forms of its results, and the layouts to use.

#include <memory>
#include <optional>

#include "intarsia/dispatch/cache.h"
#include "intarsia/dispatch/call.h"

namespace intarsia {

// `lowering` is what the op's planner returned for the call, if anything: it is the route unless a guide
// (propagate/guide.h) advises rows. The guide is asked here, once. Operands need not be admitted.
std::shared_ptr<const Decision> decide(const Call& call, Lowering lowering = {});

// Decides a call of which nothing is known, and caches the decision under its key. Arguments are read once: into
// `call`, unless a lowering takes them as they are.
std::shared_ptr<const Decision> decided(const Op& op, c10::ArrayRef<c10::IValue> arguments, const CallKey* key,
                                        std::optional<Call>& call);

// Whether an op that had no rule has got one since.
bool has_new_rule(const Op& op);

// Warns once per op that it runs on whole tensors, which is right but slow, and records it in the trace. An error in
// strict mode.
void announce_fallback(const Call& call);

// The lowering that the op's planner returns for a call of this form; empty if the rows apply.
Lowering lowering_for(const Op& op, c10::ArrayRef<c10::IValue> args);
Lowering lowering_for(const Op& op, c10::ArrayRef<c10::IValue> args, const std::vector<const Layout*>& layouts);

// Whether the value that a call with Decision::scales_pending writes has already been reduced. The call then continues
// with that value, so that it is not reduced again.
bool has_reduced_target(const Call& call);

// For an unsettled decision: settles a tensor that is to be written, if nobody can see the difference; else raises an
// error. The call must be read again.
void settle_written(const Call& call);

}  // namespace intarsia
