// Plugins for MPI that do not fit, for tests of what the ranks are told. INTARSIA_ODD_PLUGIN says in which way.

#include <cstdlib>
#include <cstring>

#include "intarsia/launch/mpi_port.h"

namespace intarsia {
namespace {

bool odd(const char* way) {
  auto* text = std::getenv("INTARSIA_ODD_PLUGIN");
  return text && !std::strcmp(text, way);
}

// The port of an MPI whose launcher did not start us: it takes the process for the only one.
class AlonePort final : public MpiPort {
 public:
  MpiLine* make_line(const std::vector<int>&, int) override { throw MpiError("alone"); }
  bool test(MpiRequest*, size_t) override { return false; }
  void cancel(MpiRequest) override {}
  void broadcast(void*, int64_t) override {}
  bool may_call() const override { return true; }
  bool ended() const override { return false; }
};

const char* says() { return odd("other") ? "Open MPI v4.1.4, package: Debian" : "MPICH Version: 4.0.2"; }

MpiPort* open_it(const MpiQuestion&) {
  if (odd("broken")) throw MpiError("no network");
  return new AlonePort;
}

void end_it() {}

}  // namespace
}  // namespace intarsia

extern "C" __attribute__((visibility("default"))) intarsia::MpiPlugin intarsia_mpi_plugin;
intarsia::MpiPlugin intarsia_mpi_plugin = {intarsia::kMpiPortVersion + intarsia::odd("version"), "MPICH 4.0.2",
                                           &intarsia::says, &intarsia::open_it, &intarsia::end_it};
