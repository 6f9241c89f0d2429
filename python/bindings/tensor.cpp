#include <ATen/ATen.h>

#include "bindings.h"
#include "intarsia/nn/distribute_module.h"
#include "intarsia/nn/redistribute_module.h"
#include "intarsia/start.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/printing.h"

namespace intarsia::python {
namespace {

using Sizes = std::vector<int64_t>;
using Number = std::variant<bool, int64_t, double, c10::complex<double>>;
using Unlocked = py::call_guard<py::gil_scoped_release>;

std::optional<Placements> value_of(const std::optional<GivenPlacements>& placements) {
  return placements ? std::optional(placements->value) : std::nullopt;
}

std::vector<at::Tensor> as_vector(const Shards& shards) { return {shards.begin(), shards.end()}; }

at::TensorOptions options_of(std::optional<at::ScalarType> dtype, bool requires_grad) {
  auto options = at::TensorOptions().requires_grad(requires_grad);
  return dtype ? options.dtype(*dtype) : options;
}

void bind_doors(py::module_& m) {
  m.def(
      "distribute_tensor",
      [](const GivenTensor& tensor, const DeviceMesh& mesh, const GivenPlacements& placements,
         std::optional<int64_t> source) { return distribute_tensor(tensor, mesh, placements.value, source); },
      py::arg("tensor"), py::arg("mesh"), py::arg("placements"), py::arg("src_data_rank"), Unlocked());
  m.def(
      "distribute_parameter",
      [](const GivenTensor& tensor, const DeviceMesh& mesh, const GivenPlacements& placements,
         std::optional<int64_t> source) { distribute_parameter(tensor, mesh, placements.value, source); },
      py::arg("tensor"), py::arg("mesh"), py::arg("placements"), py::arg("src_data_rank"), Unlocked());
  m.def(
      "from_local",
      [](const GivenTensor& local, const DeviceMesh& mesh, const GivenPlacements& placements, bool run_check,
         std::optional<Sizes> shape, std::optional<Sizes> stride) {
        return from_local(local, mesh, placements.value, {run_check, std::move(shape), std::move(stride)});
      },
      py::arg("local"), py::arg("mesh"), py::arg("placements"), py::arg("run_check") = false,
      py::arg("shape") = py::none(), py::arg("stride") = py::none(), Unlocked());
  m.def(
      "to_local",
      [](const GivenTensor& tensor, const std::optional<GivenPlacements>& grad_placements) {
        // If nothing is recorded it is the shard itself, as in PyTorch.
        if (!at::GradMode::is_enabled() && is_dtensor(tensor) && shards_of(tensor).size() == 1)
          return shards_of(tensor)[0];
        return to_local(tensor, value_of(grad_placements));
      },
      py::arg("tensor"), py::arg("grad_placements") = py::none(), Unlocked());
  m.def(
      "full_tensor",
      [](const GivenTensor& tensor, const std::optional<GivenPlacements>& grad_placements) {
        return full_tensor(tensor, value_of(grad_placements));
      },
      py::arg("tensor"), py::arg("grad_placements") = py::none(), Unlocked());
  m.def(
      "redistribute",
      [](const GivenTensor& tensor, const GivenPlacements& placements, bool async_op) {
        return redistribute(tensor, placements.value, async_op);
      },
      py::arg("tensor"), py::arg("placements"), py::arg("async_op") = false, Unlocked());
  m.def(
      "redistribute_to",
      [](const GivenTensor& tensor, const DeviceMesh& mesh, const GivenPlacements& placements) {
        return redistribute(tensor, mesh, placements.value);
      },
      py::arg("tensor"), py::arg("mesh"), py::arg("placements"), Unlocked());
  m.def(
      "redistribute_all",
      [](const GivenTensors& tensors, const DeviceMesh& mesh, const std::vector<GivenPlacements>& placements) {
        std::vector<Placements> values;
        for (auto& given : placements) values.push_back(given.value);
        return redistribute(values_of_given(tensors), mesh, values);
      },
      py::arg("tensors"), py::arg("mesh"), py::arg("placements"), Unlocked(),
      "All of them in one exchange; below autograd.");
}

void bind_factories(py::module_& m) {
  m.def(
      "empty",
      [](const Sizes& size, const DeviceMesh& mesh, const GivenPlacements& placements,
         std::optional<at::ScalarType> dtype,
         bool requires_grad) { return empty(size, mesh, placements.value, options_of(dtype, requires_grad)); },
      py::arg("size"), py::arg("mesh"), py::arg("placements"), py::arg("dtype"), py::arg("requires_grad"), Unlocked());
  m.def(
      "full",
      [](const Sizes& size, const Number& value, const DeviceMesh& mesh, const GivenPlacements& placements,
         std::optional<at::ScalarType> dtype, bool requires_grad) {
        auto scalar = std::visit([](auto number) { return at::Scalar(number); }, value);
        return full(size, scalar, mesh, placements.value, options_of(dtype, requires_grad));
      },
      py::arg("size"), py::arg("value"), py::arg("mesh"), py::arg("placements"), py::arg("dtype"),
      py::arg("requires_grad"), Unlocked());
}

void bind_queries(py::module_& m) {
  m.def("is_dtensor", [](const GivenTensor& tensor) { return is_dtensor(tensor); }, "Whether a tensor is distributed.");
  m.def(
      "same_placement", [](const py::object& a, const py::object& b) { return placement_from(a) == placement_from(b); },
      "Whether two placements mean the same.");
  m.def("mesh_of", [](const GivenTensor& tensor) { return mesh_of(tensor); });
  m.def("placements_of", [](const GivenTensor& tensor) { return placements_of_layout(layout_of(tensor)); });
  m.def(
      "shards_of", [](const GivenTensor& tensor) { return as_vector(shards_of(tensor)); }, Unlocked(),
      "The local tensors of the hosted ranks.");
  m.def("text", [](const GivenTensor& tensor) { return str(tensor.value); }, Unlocked());
  m.def("start", &start, Unlocked(), "Makes every op ready for distributed tensors.");
}

}  // namespace

void bind_tensors(py::module_& module) {
  bind_doors(module);
  bind_factories(module);
  bind_queries(module);
}

}  // namespace intarsia::python
