#include "bindings.h"
#include "intarsia/debug/explain.h"
#include "intarsia/debug/visualize.h"

namespace intarsia::python {

void bind_pictures(py::module_& module) {
  module.def("visualize_sharding", py::overload_cast<const at::Tensor&, bool>(&visualize_sharding), py::arg("tensor"),
             py::arg("colour") = false, "Which rank holds what, as text.");
  module.def("describe", py::overload_cast<const at::Tensor&>(&describe), py::arg("tensor"),
             "Shape, dtype, layout and local shapes on one line.");
  module.def("explain",
             [](const std::string& op, const std::vector<std::string>& tensors, const DeviceMesh& mesh) {
               std::vector<Imagined> imagined;
               for (auto& text : tensors) imagined.push_back(parse_imagined(text));
               return explain(op, imagined, mesh).text;
             },
             py::arg("op"), py::arg("tensors"), py::arg("mesh"), "How an op would be split, as text.");
}

}  // namespace intarsia::python
