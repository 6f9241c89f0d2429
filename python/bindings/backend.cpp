#include "intarsia/c10d_backend/intarsia_backend.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "bindings.h"
#include "intarsia/comm/interrupts.h"

namespace intarsia::python {
namespace {

c10::intrusive_ptr<c10d::Backend> make(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                       const std::string& group, const std::vector<int64_t>& ranks, int64_t world_size,
                                       int64_t milliseconds) {
  BackendOptions options;
  options.group = group;
  options.ranks = ranks;
  options.world_size = world_size;
  options.timeout = std::chrono::milliseconds(milliseconds);
  c10::intrusive_ptr<c10d::Backend> made;
  with_interrupts([&] { made = make_backend(store, rank, size, options); });
  return made;
}

}  // namespace

void bind_backends(py::module_& module) {
  module.def("make_backend", &make, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("group"),
             py::arg("ranks"), py::arg("world_size"), py::arg("milliseconds"), py::call_guard<py::gil_scoped_release>(),
             "The backend of a process group whose ranks meet in a store of its own.");
}

}  // namespace intarsia::python
