#pragma once
// The transport over MPI.

#include <cstdint>
#include <memory>

#include "intarsia/transport/transport.h"

namespace intarsia {

class MpiPort;

// Carries every line of the ranks that `port` connects; null: those of MPI_COMM_WORLD, which must be the `size` ranks
// of the job, of which we are `rank`. Needs the plugin: see launch/mpi_plugin.h.
std::shared_ptr<const Transport> make_mpi_transport(int64_t rank, int64_t size, std::shared_ptr<MpiPort> port);

}  // namespace intarsia
