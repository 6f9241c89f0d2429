#pragma once
// The engine over MPI.

#include "intarsia/comm/engines.h"

namespace intarsia {

// Null where the engine is not built in.
MakeEngine mpi_maker();

}  // namespace intarsia
