#include <numeric>

#include "bindings.h"
#include "intarsia/core/mesh.h"

namespace intarsia::python {
namespace {

// `ranks` lists one or more groups of a mesh of `shape`, row-major; see Note [Groups of a mesh]. A slice of a mesh
// whose first axis numbers the groups has them side by side.
DeviceMesh make_mesh(const World& world, const at::Device& device, std::vector<int64_t> shape,
                     const std::vector<int64_t>& ranks, std::vector<std::string> names) {
  WorldScope scope(world);
  auto size = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  TORCH_CHECK_VALUE(size > 0 && ranks.size() % size == 0, "[DeviceMesh] ", ranks.size(),
                    " ranks do not fill a mesh of shape ", c10::ArrayRef<int64_t>(shape), ".");
  auto groups = static_cast<int64_t>(ranks.size()) / size;
  if (groups == 1) return DeviceMesh(device.type(), std::move(shape), ranks, std::move(names));
  std::vector<int64_t> axes(shape.size());
  std::iota(axes.begin(), axes.end(), 1);
  shape.insert(shape.begin(), groups);
  if (!names.empty()) names.insert(names.begin(), "");
  return DeviceMesh(device.type(), std::move(shape), ranks, std::move(names)).slice_axes(axes);
}

py::tuple local_shape_and_offset(const DeviceMesh& mesh, const GivenPlacements& placements,
                                 const std::vector<int64_t>& shape, const std::vector<int64_t>& coordinate) {
  auto* layout = Layout::get(mesh, normalized(placements.value, shape.size(), "local_shape_and_offset"));
  auto local = local_shape(*layout, shape, coordinate), offset = local_offset(*layout, shape, coordinate);
  return py::make_tuple(std::vector<int64_t>(local.begin(), local.end()),
                        std::vector<int64_t>(offset.begin(), offset.end()));
}

}  // namespace

void bind_meshes(py::module_& module) {
  py::class_<DeviceMesh>(module, "Mesh", "Ranks laid on a grid with named axes.")
      .def(py::init(&make_mesh), py::arg("world"), py::arg("device"), py::arg("shape"), py::arg("ranks"),
           py::arg("names") = std::vector<std::string>())
      .def_property_readonly("id", &DeviceMesh::hash, "Equal meshes have equal ids.")
      .def_property_readonly("ndim", &DeviceMesh::ndim)
      .def_property_readonly("shape", [](const DeviceMesh& mesh) { return mesh.shape().vec(); })
      .def_property_readonly("names", &DeviceMesh::names)
      .def_property_readonly("ranks", [](const DeviceMesh& mesh) { return mesh.ranks().vec(); })
      .def_property_readonly("device_type",
                             [](const DeviceMesh& m) { return c10::DeviceTypeName(m.device_type(), true); })
      .def_property_readonly(
          "coordinates",
          [](const DeviceMesh& mesh) {
            std::vector<std::vector<int64_t>> all;
            for (auto& slot : mesh.slots()) all.push_back(slot.coordinate);
            return all;
          },
          "The places of the hosted ranks.")
      .def_property_readonly(
          "hosted",
          [](const DeviceMesh& mesh) {
            std::vector<int64_t> all;
            for (auto& slot : mesh.slots()) all.push_back(slot.rank);
            return all;
          },
          "The hosted ranks that are on the mesh.")
      .def(
          "line",
          [](const DeviceMesh& mesh, size_t slot, int64_t axis) { return mesh.line(mesh.slots().at(slot), {axis}); },
          py::arg("slot"), py::arg("axis"), "The ranks on the line of a hosted rank along an axis.")
      .def("local_shape_and_offset", &local_shape_and_offset, py::arg("placements"), py::arg("shape"),
           py::arg("coordinate"), "Of the shard at a place of the mesh.")
      .def("__repr__", &DeviceMesh::text);
}

}  // namespace intarsia::python
