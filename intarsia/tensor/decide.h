#pragma once
// Makes the decision for a call that is not in the cache: what the plain op would return, and which layouts to use.

#include <memory>

#include "intarsia/tensor/cache.h"
#include "intarsia/tensor/call.h"

namespace intarsia {

std::shared_ptr<const Decision> decide(const Call& call);

// For an unsettled decision: carries out what is pending in a tensor that is to be written, where nobody can see it; else it
// is an error. The call must be read again.
void settle_written(const Call& call);

}  // namespace intarsia
