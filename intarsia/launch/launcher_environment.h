#pragma once
// Where the ranks of a job meet and over which network they talk, read from what the launcher has set.

#include <string>

#include "intarsia/core/launchers.h"
#include "intarsia/launch/rendezvous.h"

namespace intarsia {

// INTARSIA_RENDEZVOUS, else MASTER_ADDR and MASTER_PORT, else for mpirun and srun on one host a place derived from the
// job. `given` (a text form) comes before all of these.
Meeting read_meeting(const Environment& environment, const Launch& launch, const std::string& given = "");

// Whether that finds a place.
bool knows_meeting(const Environment& environment, const Launch& launch, const std::string& given = "");

// Whether the launcher is one of MPI's and serves this process, so that MPI would find the other ranks.
bool serves_mpi(const Environment& environment, const Launch& launch);

// The network interface for the ranks' own connections: INTARSIA_INTERFACE, else GLOO_SOCKET_IFNAME, else loopback if
// the ranks meet on loopback, else empty.
std::string read_interface(const Environment& environment, const Meeting& meeting, const Launch& launch);

}  // namespace intarsia
