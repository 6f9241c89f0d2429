#pragma once
// The engine over memory that the ranks of one host share.

#include "intarsia/comm/engines.h"

namespace intarsia {

// Null where the engine is not built in.
MakeEngine shm_maker();

}  // namespace intarsia
