#include "intarsia/tensor/over_ranks.h"

#include "bindings.h"
#include "intarsia/job/first_rank.h"

namespace intarsia::python {
namespace {

using MeshIfAny = std::optional<DeviceMesh>;

template <double (*reduce)(const at::Tensor&, const MeshIfAny&)>
double in_world(const World& world, const GivenTensor& mine, const MeshIfAny& mesh) {
  WorldScope scope(world);
  return reduce(mine, mesh);
}

template <double (*reduce)(const at::Tensor&, const MeshIfAny&)>
void bind_reduction(py::module_& module, const char* name) {
  module.def(name, &in_world<reduce>, py::arg("world"), py::arg("mine"), py::arg("mesh"),
             py::call_guard<py::gil_scoped_release>());
}

}  // namespace

void bind_over_ranks(py::module_& module) {
  bind_reduction<&mean_over_ranks>(module, "mean_over_ranks");
  bind_reduction<&sum_over_ranks>(module, "sum_over_ranks");
  bind_reduction<&max_over_ranks>(module, "max_over_ranks");
  module.def("restart_count", &restart_count, "How often the launcher has started this job again.");
}

}  // namespace intarsia::python
