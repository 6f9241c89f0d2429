#include "intarsia/checkpoint/checkpoint.h"

#include "bindings.h"
#include "intarsia/core/foreign.h"

namespace intarsia::python {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;
using checkpoint::Item;
using checkpoint::Items;

// Destroys a Python object under the GIL, on whatever thread.
std::shared_ptr<py::object> held(py::handle object) {
  return {new py::object(py::reinterpret_borrow<py::object>(object)), [](py::object* held) {
            py::gil_scoped_acquire locked;
            delete held;
          }};
}

// The tensors of a checkpoint: dtype, shape, and whether they were plain.
py::dict forms_in(const checkpoint::CheckpointIndex& index) {
  py::dict result;
  for (auto& [name, tensor] : index.tensors) {
    py::tuple shape = py::cast(std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end()));
    result[py::str(name)] = py::make_tuple(tensor.dtype, shape, tensor.layout == "plain");
  }
  return result;
}

// An object whose method `want` creates the state of an optimizer from what the checkpoint has.
checkpoint::StateMaker maker_from(py::handle target) {
  return {[object = held(target)](const std::string&, const checkpoint::CheckpointIndex& index,
                                  const checkpoint::Rename& rename, checkpoint::Wanted& wanted) {
    py::gil_scoped_acquire locked;
    try {
      py::tuple answer = object->attr("want")(forms_in(index), index.values, py::cpp_function(rename));
      for (auto [name, tensor] : answer[0].cast<py::dict>())
        wanted.tensors.emplace_back(name.cast<std::string>(), tensor.cast<at::Tensor>());
      for (auto name : answer[1]) wanted.used_values.insert(name.cast<std::string>());
      for (auto name : answer[2]) wanted.values.push_back(name.cast<std::string>());
    } catch (py::error_already_set& error) {
      TORCH_CHECK_VALUE(false, py::str(error.value()).cast<std::string>());
    }
  }};
}

at::Tensor checked(py::handle value) {
  auto tensor = value.cast<GivenTensor>().value;
  check_no_wrapper(tensor, "checkpoint");
  TORCH_CHECK_NOT_IMPLEMENTED(!tensor.defined() || !tensor._is_zerotensor(),
                              "[checkpoint] the tensor is one of zeros without memory. ", "Give its clone().");
  return tensor;
}

Item item_from(py::handle value) {
  if (is_tensor(value)) return checked(value);
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  if (py::hasattr(value, "want")) return maker_from(value);
  checkpoint::NamedState state;
  for (auto [name, tensor] : value.cast<py::dict>())
    state.tensors.emplace_back(name.cast<std::string>(), checked(tensor));
  return state;
}

Items items_from(const py::dict& given) {
  Items items;
  for (auto [name, value] : given) items.emplace_back(name.cast<std::string>(), item_from(value));
  return items;
}

checkpoint::ProgressFn progress_from(const py::object& given) {
  if (given.is_none()) return nullptr;
  return [function = held(given)](int64_t done, int64_t total) {
    py::gil_scoped_acquire locked;
    (*function)(done, total);
  };
}

checkpoint::SaveOptions save_options(int64_t keep, const py::object& progress, bool quiet, double timeout) {
  using std::chrono::duration, std::chrono::seconds;
  return {.keep = keep,
          .progress = progress_from(progress),
          .quiet = quiet,
          .timeout = std::chrono::duration_cast<seconds>(duration<double>(timeout))};
}

void save(const World& world, const std::string& path, const py::dict& given, int64_t keep, const py::object& progress,
          bool quiet) {
  auto items = items_from(given);
  auto options = save_options(keep, progress, quiet, 0);
  py::gil_scoped_release unlocked;
  WorldScope scope(world);
  checkpoint::save(path, items, options);
}

checkpoint::PendingSave save_async(const World& world, const std::string& path, const py::dict& given, int64_t keep,
                                   const py::object& progress, bool quiet, double timeout) {
  auto items = items_from(given);
  auto options = save_options(keep, progress, quiet, timeout);
  py::gil_scoped_release unlocked;
  WorldScope scope(world);
  return checkpoint::save_async(path, items, options);
}

checkpoint::Rename rename_from(const py::object& given) {
  if (given.is_none()) return nullptr;
  return [function = held(given)](const std::string& name) {
    py::gil_scoped_acquire locked;
    return (*function)(name).cast<std::string>();
  };
}

py::tuple load(const World& world, const std::string& path, const py::dict& given, bool strict,
               const py::object& rename, const py::object& progress, bool quiet) {
  auto items = items_from(given);
  checkpoint::LoadOptions options{
      .strict = strict, .rename = rename_from(rename), .progress = progress_from(progress), .quiet = quiet};
  std::optional<checkpoint::Loaded> loaded;
  {
    py::gil_scoped_release unlocked;
    WorldScope scope(world);
    loaded = checkpoint::load(path, items, options);
  }
  return py::make_tuple(loaded->values(), loaded->missing(), loaded->unexpected(), loaded->mismatched());
}

void export_full(const World& world, const std::string& path, const py::dict& given, int64_t file_bytes,
                 const py::object& rename) {
  auto items = items_from(given);
  checkpoint::ExportOptions options{.file_bytes = file_bytes, .rename = rename_from(rename)};
  py::gil_scoped_release unlocked;
  WorldScope scope(world);
  checkpoint::export_full(path, items, options);
}

std::optional<std::string> newest_for_all(const World& world, const std::string& folder) {
  WorldScope scope(world);
  return checkpoint::newest_for_all(folder);
}

std::tuple<std::vector<std::string>, bool, std::string> verify(const std::string& path) {
  auto verified = checkpoint::verify(path);
  return {verified.problems, verified.checksums, checkpoint::str(verified, path)};
}

}  // namespace

void bind_checkpoints(py::module_& module) {
  py::class_<checkpoint::PendingSave>(module, "PendingSave", "A save that is under way.")
      .def_property_readonly("done", &checkpoint::PendingSave::done)
      .def("wait", &checkpoint::PendingSave::wait, Unlocked(), "Returns when it is complete; raises its error.");
  module.def("checkpoint_save", &save, py::arg("world"), py::arg("path"), py::arg("items"), py::arg("keep"),
             py::arg("progress"), py::arg("quiet"));
  module.def("checkpoint_save_async", &save_async, py::arg("world"), py::arg("path"), py::arg("items"), py::arg("keep"),
             py::arg("progress"), py::arg("quiet"), py::arg("timeout"));
  module.def("checkpoint_wait", &checkpoint::wait_for_saves, Unlocked(), "Waits for a save that is under way.");
  module.def("checkpoint_load", &load, py::arg("world"), py::arg("path"), py::arg("items"), py::arg("strict"),
             py::arg("rename"), py::arg("progress"), py::arg("quiet"));
  module.def("checkpoint_keep", &checkpoint::keep, py::arg("folder"), py::arg("count"), Unlocked());
  module.def("checkpoint_convert", &checkpoint::convert, py::arg("source"), py::arg("target"), py::arg("files"),
             py::arg("replace"), Unlocked());
  module.def("checkpoint_export", &export_full, py::arg("world"), py::arg("path"), py::arg("items"),
             py::arg("file_bytes"), py::arg("rename"));
  module.def("checkpoint_latest", &checkpoint::latest, py::arg("folder"), Unlocked());
  module.def("checkpoint_newest_for_all", &newest_for_all, py::arg("world"), py::arg("folder"), Unlocked());
  module.def("checkpoint_complete", &checkpoint::complete, py::arg("folder"), Unlocked());
  module.def("checkpoint_verify", &verify, py::arg("path"), Unlocked(),
             "What is wrong, whether there were checksums, and both in words.");
}

}  // namespace intarsia::python
