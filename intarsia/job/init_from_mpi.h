#pragma once
// Joins a job whose ranks are those of an MPI communicator of the program. The only header that needs mpi.h; no other
// header includes it.

#include <mpi.h>

#include <string>

#include "intarsia/job/init.h"

namespace intarsia {

// All ranks of `communicator` call it, after MPI_Init. Its ranks are the world; messages go over communicators of our
// own, so they never meet those of the program. The engine is mpi unless the options or INTARSIA_ENGINE name another,
// which then needs MPI only to find the ranks. Respects the thread level with which MPI was started, and does not end
// MPI: call finalize() before MPI_Finalize. See docs/launching.md.
inline const World& init_from_mpi_fint(MPI_Fint communicator, const InitOptions& options = {}) {
  char library[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(library, &length);
  return init_from_communicator(communicator, library, options);
}

inline const World& init_from_mpi(MPI_Comm communicator, const InitOptions& options = {}) {
  return init_from_mpi_fint(MPI_Comm_c2f(communicator), options);
}

}  // namespace intarsia
