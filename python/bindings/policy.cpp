#include <memory>

#include "bindings.h"
#include "intarsia/comm/implicit_moves.h"
#include "intarsia/dispatch/random_scope.h"
#include "intarsia/nn/born_sharded.h"
#include "intarsia/propagate/guide.h"
#include "intarsia/tensor/policy.h"

namespace intarsia::python {
namespace {

// A C++ scope as a context manager.
template <class Scope, class... Args>
class ManagedScope {
 public:
  explicit ManagedScope(Args... args) : make_([args...] { return std::make_unique<Scope>(args...); }) {}
  void enter() { scope_ = make_(); }
  void exit(const py::args&) { scope_.reset(); }

 private:
  std::function<std::unique_ptr<Scope>()> make_;
  std::unique_ptr<Scope> scope_;
};

template <class Scope, class... Args>
void bind_scope(py::module_& module, const char* name, const char* doc) {
  using Managed = ManagedScope<Scope, Args...>;
  py::class_<Managed>(module, name, doc)
      .def(py::init<Args...>())
      .def("__enter__", &Managed::enter, py::call_guard<py::gil_scoped_release>())
      .def("__exit__", &Managed::exit);
}

}  // namespace

void bind_policies(py::module_& module) {
  py::enum_<PlainTensors>(module, "PlainTensors")
      .value("error", PlainTensors::error)
      .value("replicate", PlainTensors::replicate)
      .value("verify", PlainTensors::verify);
  bind_scope<PlainTensorScope, PlainTensors>(module, "PlainTensorScope",
                                             "What happens to plain tensors that meet distributed ones.");
  py::enum_<ImplicitMoves>(module, "ImplicitMoves")
      .value("allow", ImplicitMoves::allow)
      .value("warn", ImplicitMoves::warn)
      .value("error", ImplicitMoves::error);
  bind_scope<ImplicitMovesScope, ImplicitMoves, bool>(module, "ImplicitMovesScope",
                                                      "What happens when an op has to move its tensors by itself.");
  bind_scope<StrictScope, bool>(module, "StrictScope", "Ops without a rule are errors inside.");
  py::enum_<PendingWrites>(module, "PendingWrites")
      .value("settle", PendingWrites::settle)
      .value("error", PendingWrites::error);
  module.def("set_pending_writes", &set_pending_writes);
  bind_scope<RandomScope, DeviceMesh>(module, "RandomScope", "Ranks agree on the random generator once, not before every draw.");
  bind_scope<BornSharded, DeviceMesh>(module, "BornSharded", "New tensors are distributed from birth.");
  bind_scope<UnguidedScope>(module, "UnguidedScope", "The guide is not asked inside.");
  bind_scope<LocalErrorScope, bool>(module, "LocalErrorScope", "A wrong value is an error on the rank that holds it only.");
}

}  // namespace intarsia::python
