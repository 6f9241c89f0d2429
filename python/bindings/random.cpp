#include "bindings.h"
#include "intarsia/dispatch/one_generator.h"
#include "intarsia/dispatch/random_scope.h"
#include "intarsia/nn/born_sharded.h"
#include "intarsia/nn/distribute_module.h"
#include "intarsia/random/local_random_scope.h"
#include "intarsia/simulation/fan_out/fan_out_draw.h"
#include "managed_scope.h"

namespace intarsia::python {

using Unlocked = py::call_guard<py::gil_scoped_release>;

namespace {

struct GivenLocalRandomScope : LocalRandomScope {
  GivenLocalRandomScope(const DeviceMesh& mesh, const GivenPlacements& placements)
      : LocalRandomScope(mesh, placements.value) {}
};

}  // namespace

void bind_random(py::module_& module) {
  py::enum_<Generators>(module, "Generators").value("compare", Generators::compare).value("follow", Generators::follow);
  module.def("set_generators", &set_generators, "What ranks do before a draw outside of a RandomScope.");
  module.def("draws_apart", &draws_apart,
             "How often simulated ranks would have drawn different amounts, on this thread.");
  module.def("agree_on_generator", &agree_on_generator, py::arg("mesh"), py::arg("generator"), Unlocked(),
             "All ranks of the mesh go on from the state of the first one's generator.");
  bind_scope<RandomScope, DeviceMesh>(module, "RandomScope",
                                      "Ranks agree on the random generator once, not before every draw.")
      .def("agree", [](ManagedScope<RandomScope, DeviceMesh>& self) { self.get("RandomScope").agree(); }, Unlocked());
  bind_scope<GivenLocalRandomScope, DeviceMesh, GivenPlacements>(
      module, "LocalRandomScope", "Random ops on plain tensors draw this rank's part of the numbers of one device.");
  py::class_<LocalRandomScope::Parts>(module, "LocalRandomParts", "How a LocalRandomScope splits tensors.");
  module.def("local_random_parts", &LocalRandomScope::current,
             "How the innermost LocalRandomScope of this thread splits tensors; None without one.");
  bind_scope<LocalRandomScope, std::optional<LocalRandomScope::Parts>>(
      module, "ReplayedLocalRandomScope",
      "A LocalRandomScope as another one, or as without any: for code that runs again.");
  bind_scope<BornSharded, DeviceMesh>(module, "BornSharded", "New tensors are distributed from birth.");
  bind_scope<MovingParameters>(module, "MovingParameters", "Parameters that lie on the mesh may be moved.")
      .def("has_moved", [](ManagedScope<MovingParameters>& self, const GivenTensor& tensor) {
        return self.get("MovingParameters").has_moved(tensor);
      });
  module.def("moves_parameters", &MovingParameters::is_open, "Whether such a scope is open.");
}

}  // namespace intarsia::python
