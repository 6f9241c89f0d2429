#pragma once
// Finds the MPI plugin and opens it. The library itself needs no MPI.

#include <memory>
#include <string>

#include "intarsia/launch/mpi_port.h"

namespace intarsia {

// INTARSIA_MPI_PLUGIN, else libintarsia_mpi.so beside this library. Loaded once; if it cannot be, the error says why.
const MpiPlugin& mpi_plugin();

// Whether there is a plugin that was built for the MPI of this launcher: mpirun (Open MPI) or mpiexec (MPICH and
// related ones).
bool mpi_plugin_serves(const std::string& launcher);

// The ranks of MPI_COMM_WORLD. Starts MPI if it is not running; returns the same port from then on.
std::shared_ptr<MpiPort> open_mpi_world();

// The ranks of a communicator of the program: its Fortran handle, and the version text of the program's MPI.
std::shared_ptr<MpiPort> open_mpi(int communicator, const std::string& library);

// Ends MPI if we have started it. Waits until the other ranks end it as well.
void end_mpi();
bool started_mpi();

}  // namespace intarsia
