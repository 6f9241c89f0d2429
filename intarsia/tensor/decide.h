#pragma once
// Makes the decision for a call that is not in the cache: what the plain op would return, and which layouts to use.

#include <memory>

#include "intarsia/tensor/cache.h"
#include "intarsia/tensor/call.h"

namespace intarsia {

std::shared_ptr<const Decision> decide(const Call& call);

}  // namespace intarsia
