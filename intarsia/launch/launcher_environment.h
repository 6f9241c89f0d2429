#pragma once
// Where the ranks of a job meet and which network they use, read from the launcher's variables.

#include <string>

#include "intarsia/core/launchers.h"
#include "intarsia/launch/rendezvous.h"

namespace intarsia {

// INTARSIA_RENDEZVOUS, else MASTER_ADDR and MASTER_PORT, else for mpirun and srun on one host a place derived from the
// job's id. `given` (a text form) precedes all of these.
Meeting read_meeting(const Environment& environment, const Launch& launch, const std::string& given = "");

// Whether read_meeting finds a place.
bool knows_meeting(const Environment& environment, const Launch& launch, const std::string& given = "");

// Whether the launcher belongs to an MPI and started this process, so that MPI would find the other ranks.
bool serves_mpi(const Environment& environment, const Launch& launch);

// The network interface for the ranks' connections: INTARSIA_INTERFACE, else GLOO_SOCKET_IFNAME, else loopback if the
// ranks meet on loopback, else empty.
std::string read_interface(const Environment& environment, const Meeting& meeting, const Launch& launch);

}  // namespace intarsia
