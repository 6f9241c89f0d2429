#include "bindings.h"
#include "intarsia/debug/explain.h"
#include "intarsia/debug/explain_text.h"
#include "intarsia/debug/visualize.h"

namespace intarsia::python {

void bind_pictures(py::module_& module) {
  module.def(
      "visualize_sharding", [](const GivenTensor& tensor, bool colour) { return visualize_sharding(tensor, colour); },
      py::arg("tensor"), py::arg("colour") = false, "Which rank holds what, as text.");
  module.def(
      "describe", [](const GivenTensor& tensor) { return describe(tensor.value); }, py::arg("tensor"),
      "Shape, dtype, layout and local shapes on one line.");
  module.def(
      "explain",
      [](const std::string& op, const std::vector<std::string>& tensors, const DeviceMesh& mesh) {
        std::vector<Imagined> imagined;
        for (auto& text : tensors) imagined.push_back(parse_imagined(text));
        return explain(op, imagined, mesh).text;
      },
      py::arg("op"), py::arg("tensors"), py::arg("mesh"), "How an op would be split, as text.");
}

}  // namespace intarsia::python
