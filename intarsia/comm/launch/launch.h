#pragma once
// What a launcher tells a process about its place in the job, read from the environment.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "intarsia/comm/launch/rendezvous.h"

namespace intarsia {

using Environment = std::function<const char*(const char* name)>;  // as getenv

struct Launch {
  std::string by;  // torchrun, mpirun, srun, mpiexec; "init" if the program itself said
  int64_t rank = 0;
  int64_t size = 1;
  int64_t local_rank = 0;    // among the ranks on this host
  bool one_host = false;     // all ranks are known to be on this host
  std::string job;           // differs between jobs, also between restarts of one; empty if unknown
};

// None of the launchers: no value. torchrun's variables count first, then mpirun's (Open MPI), then srun's, then mpiexec's (MPICH).
std::optional<Launch> read_launch(const Environment& environment);

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

// A whole number, or an error that names the variable.
std::optional<int64_t> read_number(const Environment& environment, const char* name);

}  // namespace intarsia
