#include <stdlib.h>

#include <chrono>
#include <optional>
#include <tuple>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "bindings.h"
#include "intarsia/comm/around_waits.h"
#include "intarsia/comm/engine.h"
#include "intarsia/comm/interrupts.h"
#include "intarsia/core/launchers.h"
#include "intarsia/job/engines.h"
#include "intarsia/job/job_engine.h"
#include "intarsia/simulation/simulation.h"

namespace intarsia::python {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

const World* simulated_world(int64_t n) {
  Simulation simulation(n);
  return &current_world();
}

// Worlds live until the process ends.
const World* joined_world(const StorePtr& store, int64_t rank, int64_t size, int64_t milliseconds) {
  auto own = store ? c10::make_intrusive<c10d::PrefixStore>("intarsia", store) : nullptr;
  return choose_engine("")({rank, size, own, "", std::chrono::milliseconds(milliseconds)}).release();
}

// Engines that do not use groups connect the ranks themselves.
void adopt(const World& world, const std::vector<int64_t>& ranks, const GroupPtr& group, const at::Device& device) {
  auto* engine = dynamic_cast<const JobEngine*>(&engine_of(world));
  if (engine) engine->adopt(ranks, group->getBackend(device.type()));
}

// Most of PyTorch's functions release the GIL before they call an op; indexing does not.
std::shared_ptr<void> let_go_of_gil() {
  if (!Py_IsInitialized() || !PyGILState_Check()) return nullptr;
  return std::make_shared<py::gil_scoped_release>();
}

// Python handles signals on its main thread.
unsigned long main_thread() {
  static auto ident = py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
  return ident;
}

// KeyboardInterrupt and the like are not failures of what they interrupt.
bool is_stop(PyObject* type) { return type && !PyErr_GivenExceptionMatches(type, PyExc_Exception); }

// A tensor's destructor may wait for data sent to it while an error is being raised: that error stays.
void check_signals() {
  if (!Py_IsInitialized() || PyThread_get_thread_ident() != main_thread()) return;
  py::gil_scoped_acquire locked;
  TORCH_CHECK(!is_stop(PyErr_Occurred()), "interrupted");
  py::error_scope on_its_way;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

void repeat_signal() {
  py::gil_scoped_acquire locked;
  if (!is_stop(PyErr_Occurred())) PyErr_SetInterrupt();
}

bool stops(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const python_error& e) {
    py::gil_scoped_acquire locked;
    return is_stop(e.type);
  } catch (const py::error_already_set& e) {
    py::gil_scoped_acquire locked;
    return is_stop(e.type().ptr());
  } catch (...) {
    return false;
  }
}

constexpr Interrupts kSignals{&check_signals, &repeat_signal, &stops};

// (launcher, rank, size) if a launcher has started this process as one of several ranks.
std::optional<std::tuple<std::string, int64_t, int64_t>> launched_among_several() {
  auto environment = [](const char* name) -> const char* { return getenv(name); };
  auto launch = read_launch_of_several(environment);
  if (!launch) return std::nullopt;
  return std::tuple(launcher_name(environment, *launch), launch->rank, launch->size);
}

void barrier(const World& world) {
  with_interrupts([&] { engine_of(world).barrier(); });
}

void close(const World& world) { engine_of(world).close(); }

}  // namespace

void bind_worlds(py::module_& module) {
  py::module_::import("torch._C._distributed_c10d");  // it knows Store and ProcessGroup
  set_around_waits(&let_go_of_gil);
  main_thread();
  set_interrupts(&kSignals);
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<World, std::unique_ptr<World, py::nodelete>>(module, "World", "The ranks of a job.")
      .def_property_readonly("size", &World::size)
      .def_property_readonly("hosted", &World::hosted, "The ranks that this process plays.")
      .def_property_readonly("simulated", &World::simulated)
      .def("adopt", &adopt, py::arg("ranks"), py::arg("group"), py::arg("device"), Unlocked(),
           "Lets the line of these ranks travel over a process group.")
      .def("close", &close, Unlocked(), "Closes the connections.")
      .def("barrier", &barrier, Unlocked())
      .def("__repr__", &World::text);
  auto reference = py::return_value_policy::reference;
  module.def("simulated_world", &simulated_world, py::arg("n"), reference,
             "A world of n ranks played by this process.");
  module.def("launched_among_several", &launched_among_several,
             "The launcher, rank and number of ranks, if a launcher has started this process as one of several.");
  module.def("joined_world", &joined_world, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("milliseconds"),
             reference, Unlocked(), "The world of rank `rank` of `size` that meet in a store.");
}

}  // namespace intarsia::python
