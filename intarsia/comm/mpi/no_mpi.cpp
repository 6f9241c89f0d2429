// Stands in for mpi.cpp where the engine is not built in.

#include "intarsia/comm/mpi/mpi.h"

namespace intarsia {

MakeEngine mpi_maker() { return nullptr; }

}  // namespace intarsia
