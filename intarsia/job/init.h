#pragma once
// init(): joins the job that this process is part of.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "intarsia/core/world.h"

namespace c10d {
class Backend;
class ProcessGroup;
class Store;
}  // namespace c10d

namespace intarsia {

// Missing options are read from the environment; see docs/launching.md.
struct InitOptions {
  std::optional<int64_t> rank;
  std::optional<int64_t> world_size;
  std::string rendezvous;                            // tcp://host:port or file:///path
  std::string interface;                             // network interface or address for the ranks' connections
  std::optional<std::chrono::milliseconds> timeout;  // of every wait; else INTARSIA_TIMEOUT (seconds), else 5 minutes
  std::string engine;  // auto, gloo, shm, mpi; else INTARSIA_ENGINE, else auto: see engines.h
};

// Makes the process's world from the variables of torchrun, `intarsia run`, mpirun (Open MPI), srun or mpiexec (MPICH),
// and returns when all ranks have arrived. Without any of these it is a world of one rank, with no sockets. A second
// call returns the same world.
const World& init(const InitOptions& options = {});

// The same over a given store, for rank `rank` of `size` ranks, all of which call it.
const World& init_from(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size,
                       const InitOptions& options = {});

// The same over an existing process group: its ranks are the world. The group must outlive its use.
const World& init_from_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const InitOptions& options = {});
const World& init_from_group(const c10::intrusive_ptr<c10d::Backend>& group, const InitOptions& options = {});

// The same over an MPI communicator, for init_from_mpi.h, which includes mpi.h: its Fortran handle, and the version
// text of the program's MPI.
const World& init_from_communicator(int communicator, const std::string& library, const InitOptions& options = {});

// Leaves the job: closes the connections. The process may join again, if the others do so as well. A program that ends
// need not call it: if it ends normally, the rank that serves the store stays until the others have ended.
void finalize();

// Of the current world. A simulation has no single rank, so rank() is an error there.
int64_t rank();
int64_t world_size();
int64_t local_rank();  // among the ranks on this host, as the launcher numbers them

// Returns when every rank of the current world has called it.
void barrier();

}  // namespace intarsia
