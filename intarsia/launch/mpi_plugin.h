#pragma once
// Finds the plugin for MPI and opens it. The library itself needs no MPI.

#include <memory>
#include <string>

#include "intarsia/launch/mpi_port.h"

namespace intarsia {

// INTARSIA_MPI_PLUGIN, else libintarsia_mpi.so beside this library. Loaded once; an error says why that is not
// possible.
const MpiPlugin& mpi_plugin();

// Whether there is a plugin that was built for the MPI of this launcher: mpirun (Open MPI) or mpiexec (MPICH and its
// kin).
bool mpi_plugin_serves(const std::string& launcher);

// The ranks of MPI_COMM_WORLD. Starts MPI if nobody has; returns the same one ever after.
std::shared_ptr<MpiPort> open_mpi_world();

// The ranks of a communicator of the program: its handle as Fortran has it, and what the program's MPI says of itself.
std::shared_ptr<MpiPort> open_mpi(int communicator, const std::string& library);

// Ends MPI if we have started it. Waits for the other ranks to do so, too.
void end_mpi();
bool started_mpi();

}  // namespace intarsia
