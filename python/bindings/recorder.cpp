#include <memory>

#include "bindings.h"
#include "intarsia/comm/trace.h"

namespace intarsia::python {
namespace {

// Passes every collective to a Python function.
class CallbackRecorder final : public Recorder {
 public:
  explicit CallbackRecorder(py::object callback) : callback_(std::move(callback)) {}
  ~CallbackRecorder() override { stop(); }
  void start() {
    py::gil_scoped_release unlocked;
    if (!std::exchange(running_, true)) add_recorder(this);
  }
  void stop() {
    py::gil_scoped_release unlocked;  // events are delivered under a lock, and take the GIL inside it
    if (std::exchange(running_, false)) remove_recorder(this);
  }

 private:
  void on_comm(const CommEvent& event) override {
    py::gil_scoped_acquire locked;
    try {
      callback_(event);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("intarsia._core.Recorder");
    }
  }
  void on_fallback(const FallbackEvent&) override {}

  py::object callback_;
  bool running_ = false;
};

}  // namespace

void bind_recorder(py::module_& module) {
  py::class_<CommEvent>(module, "CommEvent", "One collective.")
      .def_readonly("kind", &CommEvent::kind)
      .def_readonly("axis", &CommEvent::axis)
      .def_readonly("sent", &CommEvent::sent)
      .def_readonly("received", &CommEvent::received)
      .def_readonly("op", &CommEvent::op)
      .def_readonly("implicit", &CommEvent::implicit)
      .def_readonly("seconds", &CommEvent::seconds)
      .def_readonly("engine", &CommEvent::engine, "What carried it: shm, gloo, ...")
      .def("__repr__", [](const CommEvent& event) { return str(event); });
  py::class_<CallbackRecorder>(module, "Recorder", "Calls a function for every collective of this process.")
      .def(py::init<py::object>(), py::arg("callback"))
      .def("start", &CallbackRecorder::start)
      .def("stop", &CallbackRecorder::stop);
}

}  // namespace intarsia::python
