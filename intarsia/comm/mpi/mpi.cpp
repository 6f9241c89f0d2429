#include "intarsia/comm/mpi/mpi.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "intarsia/comm/c10d/c10d.h"
#include "intarsia/comm/mpi/load.h"
#include "intarsia/comm/mpi/mpi_traffic.h"

namespace intarsia {

std::unique_ptr<Engine> make_mpi_engine(const Job& job) {
  auto port = job.mpi ? job.mpi : open_mpi_world();
  TORCH_CHECK_VALUE(port->rank == job.rank && port->size == job.size, "[init] this is rank ", job.rank, " of ", job.size,
                    " of the job, but rank ", port->rank, " of ", port->size, " of MPI (the plugin was built for ",
                    mpi_plugin().built_for, "). Start the program with the mpirun of that MPI, or use another engine.");
  return std::make_unique<C10dEngine>(
      job.rank, job.size, job.store,
      C10dOptions{job.interface, job.timeout, true, Lines::mpi, std::make_shared<MpiTraffic>(std::move(port))});
}

}  // namespace intarsia
