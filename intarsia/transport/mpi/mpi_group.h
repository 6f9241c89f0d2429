#pragma once
// A group whose members communicate over MPI.

#include <memory>

#include "intarsia/comm/group.h"
#include "intarsia/transport/mpi/mpi_progress_engine.h"

namespace intarsia {

// Made of messages, not of MPI's collectives: these match by their order alone, have no bfloat16, and reduce in an
// unspecified order. Reduces in the order of the line, whatever the size, synchronously or not: the same bits as every
// other engine. The side is given without a line of MPI; all its members call this.
std::unique_ptr<Group> make_mpi_group(std::shared_ptr<MpiProgressEngine> progress, std::shared_ptr<MpiEndpoint> side);

}  // namespace intarsia
