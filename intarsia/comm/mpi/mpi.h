#pragma once
// The engine over MPI.

#include <memory>

#include "intarsia/comm/engines.h"

namespace intarsia {

// Over job.mpi, else over MPI_COMM_WORLD, whose ranks have to be those of the job. Needs the plugin: see load.h.
std::unique_ptr<Engine> make_mpi_engine(const Job& job);

}  // namespace intarsia
