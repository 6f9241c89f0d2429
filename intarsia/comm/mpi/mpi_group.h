#pragma once
// A group whose members talk over MPI.

#include <memory>

#include "intarsia/comm/group.h"
#include "intarsia/comm/mpi/mpi_traffic.h"

namespace intarsia {

// Made of messages, not of MPI's collectives: these match by their order alone, know no bfloat16, and reduce in an order of their own.
// Reduces in the order of the line, whatever the size, and now as later: the same bits as every other engine. The side is given
// without a line of MPI; all its members call this.
std::unique_ptr<Group> make_mpi_group(std::shared_ptr<MpiTraffic> traffic, std::shared_ptr<MpiSide> side);

}  // namespace intarsia
