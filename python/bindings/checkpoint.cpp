#include "intarsia/checkpoint/checkpoint.h"

#include <torch/csrc/autograd/python_variable.h>

#include "bindings.h"

namespace intarsia::python {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;
using checkpoint::Item;
using checkpoint::Items;

Item item_from(py::handle value) {
  if (THPVariable_Check(value.ptr())) return value.cast<at::Tensor>();
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  checkpoint::NamedState state;
  for (auto [name, tensor] : value.cast<py::dict>())
    state.tensors.emplace_back(name.cast<std::string>(), tensor.cast<at::Tensor>());
  return state;
}

Items items_from(const py::dict& given) {
  Items items;
  for (auto [name, value] : given) items.emplace_back(name.cast<std::string>(), item_from(value));
  return items;
}

void save(const World& world, const std::string& path, const py::dict& given, int64_t keep) {
  auto items = items_from(given);
  py::gil_scoped_release unlocked;
  WorldScope scope(world);
  checkpoint::save(path, items, {.keep = keep});
}

checkpoint::PendingSave save_async(const World& world, const std::string& path, const py::dict& given, int64_t keep) {
  auto items = items_from(given);
  py::gil_scoped_release unlocked;
  WorldScope scope(world);
  return checkpoint::save_async(path, items, {.keep = keep});
}

checkpoint::Rename rename_from(const py::object& given) {
  if (given.is_none()) return nullptr;
  auto function = std::make_shared<py::object>(given);
  return [function](const std::string& name) {
    py::gil_scoped_acquire locked;
    return (*function)(name).cast<std::string>();
  };
}

py::tuple load(const World& world, const std::string& path, const py::dict& given, bool strict, const py::object& rename) {
  auto items = items_from(given);
  checkpoint::LoadOptions options{.strict = strict, .rename = rename_from(rename)};
  std::optional<checkpoint::Loaded> loaded;
  {
    py::gil_scoped_release unlocked;
    WorldScope scope(world);
    loaded = checkpoint::load(path, items, options);
  }
  return py::make_tuple(loaded->values(), loaded->missing(), loaded->unexpected(), loaded->mismatched());
}

void export_full(const World& world, const std::string& path, const py::dict& given, int64_t file_bytes, const py::object& rename) {
  auto items = items_from(given);
  checkpoint::ExportOptions options{.file_bytes = file_bytes, .rename = rename_from(rename)};
  py::gil_scoped_release unlocked;
  WorldScope scope(world);
  checkpoint::export_full(path, items, options);
}

py::dict tensors_in(const std::string& path) {
  py::dict result;
  for (auto& [name, tensor] : checkpoint::index_of(path).tensors) {
    result[py::str(name)] =
        py::make_tuple(tensor.dtype, py::tuple(py::cast(std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end()))));
  }
  return result;
}

}  // namespace

void bind_checkpoints(py::module_& module) {
  py::class_<checkpoint::PendingSave>(module, "PendingSave", "A save that is under way.")
      .def_property_readonly("done", &checkpoint::PendingSave::done)
      .def("wait", &checkpoint::PendingSave::wait, Unlocked(), "Returns when it is complete; raises its error.");
  module.def("checkpoint_save", &save, py::arg("world"), py::arg("path"), py::arg("items"), py::arg("keep"));
  module.def("checkpoint_save_async", &save_async, py::arg("world"), py::arg("path"), py::arg("items"), py::arg("keep"));
  module.def("checkpoint_load", &load, py::arg("world"), py::arg("path"), py::arg("items"), py::arg("strict"), py::arg("rename"));
  module.def("checkpoint_export", &export_full, py::arg("world"), py::arg("path"), py::arg("items"), py::arg("file_bytes"),
             py::arg("rename"));
  module.def("checkpoint_tensors", &tensors_in, py::arg("path"), "Dtype and shape of every tensor, by name.");
  module.def(
      "checkpoint_values", [](const std::string& path) { return checkpoint::index_of(path).values; }, py::arg("path"));
  module.def("checkpoint_latest", &checkpoint::latest, py::arg("folder"), Unlocked());
  module.def("checkpoint_complete", &checkpoint::complete, py::arg("folder"), Unlocked());
  module.def("checkpoint_problems", &checkpoint::problems_of, py::arg("path"), Unlocked());
}

}  // namespace intarsia::python
