#include "intarsia/transport/mpi/mpi_transport.h"

#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "intarsia/launch/mpi_plugin.h"
#include "intarsia/launch/rendezvous.h"
#include "intarsia/transport/mpi/mpi_group.h"

namespace intarsia {
namespace {

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(std::shared_ptr<MpiPort> port)
      : progress_(std::make_shared<MpiProgressEngine>(std::move(port))) {}

  // Creating a communicator waits for its members without a time-out, so all meet in the store first.
  Connection connect(const LineRequest& line) const override {
    arrive("make_group", *line.store, line.rank(), line.ranks, line.timeout);
    return {make_mpi_group(progress_, std::make_shared<MpiEndpoint>(line.watched("mpi", line.instance)))};
  }

 private:
  std::shared_ptr<MpiProgressEngine> progress_;
};

}  // namespace

std::shared_ptr<const Transport> make_mpi_transport(int64_t rank, int64_t size, std::shared_ptr<MpiPort> port) {
  if (!port) port = open_mpi_world();
  TORCH_CHECK_VALUE(port->rank == rank && port->size == size, "[init] this is rank ", rank, " of ", size,
                    " of the job, but rank ", port->rank, " of ", port->size, " of MPI (the plugin was built for ",
                    mpi_plugin().built_for, "). Start the program with the mpirun of that MPI, or use another engine.");
  return std::make_shared<MpiTransport>(std::move(port));
}

}  // namespace intarsia
